"""The reference policy: it follows as configured, costs no second base model, and leaves the live adapter alone."""
# R4

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner
from torch import Tensor

from mcprl.learning import TorchLearner, process_group
from mcprl.records import Columns, Trajectory, Update, Weights

TUNINGS = ("lora", "full")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("reference-model"))


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are not written: whole models need a tokenizer beside them."""
    monkeypatch.setattr(
        process_group, "save_weights", lambda policy, version, folder, *, model: Weights(version=version)
    )


def learner_with(model: Path, folder: Path, tuning: str, *, cap: float | None = None, **kl: Any) -> TorchLearner:
    settings = {"coefficient": 0.05, "cap": cap, **kl}
    return small_learner(small_config(model, algorithm={"kl": settings}, tuning=tuning, learning_rate=5e-3), folder)


async def one_update(learner: TorchLearner, *, reference_shift: float = 0.0) -> Update:
    groups = small_groups()
    readings = await learner.read([t for group in groups for t in group.trajectories])
    if reference_shift:
        columns = readings.reference_logprobs or ()
        shifted = tuple(tuple(x - reference_shift if x else 0.0 for x in column) for column in columns)
        readings = replace(readings, reference_logprobs=shifted)
    return await learner.update(small_batch(learner._config, groups, readings=readings))


def trained(learner: TorchLearner) -> dict[str, Tensor]:
    """The tensors of the live policy that an update moves."""
    model: Any = learner.policy.model
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def kept(learner: TorchLearner) -> dict[str, Tensor]:
    """The reference's own tensors, under the names of the live ones."""
    assert learner.reference is not None
    copy = learner.reference.copy
    if copy is not None:
        return {name: p.detach().clone() for name, p in copy.model.named_parameters()}
    named = learner.policy.model.named_parameters()
    return {n.replace(".reference.", ".default."): p.detach().clone() for n, p in named if ".reference." in n}


def assert_same(found: dict[str, Tensor], true: dict[str, Tensor], *, tolerance: float = 0.0) -> None:
    assert found.keys() == true.keys()
    assert found
    assert max(float((found[name] - true[name]).abs().max()) for name in true) <= tolerance


def trajectories() -> list[Trajectory]:
    return [t for group in small_groups() for t in group.trajectories]


def distance(one: Columns | None, other: Columns | None) -> float:
    assert one is not None
    assert other is not None

    def flat(columns: Sequence[Sequence[float]]) -> Tensor:
        return torch.tensor([x for column in columns for x in column])

    return float((flat(one) - flat(other)).abs().max())


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_the_base_reference_stays_the_untouched_model(model, tuning, tmp_path):
    learner = learner_with(model, tmp_path, tuning, reference="base")
    untouched = await learner.score(trajectories())
    for _ in range(3):
        update = await one_update(learner)
        assert update.metrics["reference_synced"] == 0.0
    read = (await learner.read(trajectories())).reference_logprobs
    assert distance(read, untouched) == 0.0
    assert distance(await learner.score(trajectories()), untouched) > 1e-3, "the policy did not move"


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_a_moving_average_is_the_average_computed_by_hand(model, tuning, tmp_path, record_property):
    decay = 0.9
    learner = learner_with(model, tmp_path, tuning, reference="ema", lag=10)
    by_hand = {name: tensor.double() for name, tensor in trained(learner).items()}
    assert_same(kept(learner), trained(learner))
    for _ in range(4):
        await one_update(learner)
        for name, tensor in trained(learner).items():
            by_hand[name] = decay * by_hand[name] + (1.0 - decay) * tensor.double()
    found = kept(learner)
    difference = max(float((found[name].double() - by_hand[name]).abs().max()) for name in by_hand)
    record_property("ema_largest_difference", difference)
    assert difference <= 1e-6
    assert max(float((found[name] - tensor).abs().max()) for name, tensor in trained(learner).items()) > 1e-3


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_no_tensor_differs_after_a_sync_and_the_reference_rests_between(model, tuning, tmp_path):
    learner = learner_with(model, tmp_path, tuning, reference="sync", lag=2)
    first = trained(learner)
    update = await one_update(learner)
    assert update.metrics["reference_synced"] == 0.0
    assert_same(kept(learner), first)
    update = await one_update(learner)
    assert update.metrics["reference_synced"] == 1.0
    assert update.metrics["reference_tensors_differing"] == 0.0
    synced = trained(learner)
    assert_same(kept(learner), synced)
    read = (await learner.read(trajectories())).reference_logprobs
    assert distance(read, await learner.score(trajectories())) == 0.0
    await one_update(learner)
    assert_same(kept(learner), synced)
    assert distance(read, await learner.score(trajectories())) > 1e-4


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_a_tensor_that_a_sync_left_behind_is_counted(model, tuning, tmp_path):
    learner = learner_with(model, tmp_path, tuning, reference="sync")
    assert learner.reference is not None
    await one_update(learner)
    live, own = next(iter(learner.reference._pairs().values()))
    with torch.no_grad():
        live.fill_(float("nan"))  # a number that no copy is equal to
    assert own.shape == live.shape
    assert learner.reference.become_policy() == 1


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("reference", ["base", "ema", "sync"])
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_the_policy_stays_trainable_after_the_reference_was_in_place(model, tuning, reference, tmp_path):
    learner = learner_with(model, tmp_path, tuning, reference=reference)
    assert learner.reference is not None
    trainable = {name for name, p in learner.policy.named_parameters() if p.requires_grad}
    await one_update(learner)  # an adapter that is the identity moves in its one half only
    for _ in range(2):
        with learner.reference.in_place():
            pass
        assert {name for name, p in learner.policy.named_parameters() if p.requires_grad} == trainable
        before = trained(learner)
        await one_update(learner)
        after = trained(learner)
        assert all(not torch.equal(before[name], after[name]) for name in before)
    assert not any("reference" in name for name in trainable)
    optimised = {id(p) for group in learner.optimisation.optimiser.param_groups for p in group["params"]}
    assert optimised == {id(p) for p in learner.policy.parameters() if p.requires_grad}


@pytest.mark.usefixtures("unsaved")
@pytest.mark.parametrize("reference", ["ema", "sync"])
@pytest.mark.parametrize("tuning", TUNINGS)
async def test_an_update_that_the_cap_stopped_refreshes_the_reference(model, tuning, reference, tmp_path):
    learner = learner_with(model, tmp_path, tuning, reference=reference, cap=2.0)
    start = trained(learner)
    update = await one_update(learner)
    assert update.skipped is None
    moved = trained(learner)
    assert any(not torch.equal(moved[name], start[name]) for name in start)
    update = await one_update(learner, reference_shift=3.0)  # the estimate is half the square: 4.5
    assert update.skipped is not None
    assert "algorithm.kl.cap" in update.skipped
    assert (update.metrics["reference_synced"], update.metrics["reference_tensors_differing"]) == (1.0, 0.0)
    assert update.weights.version == 1
    assert_same(trained(learner), moved)
    assert_same(kept(learner), moved)


def storage_of(learner: TorchLearner) -> int:
    return sum({p.data_ptr(): p.numel() for p in learner.policy.parameters()}.values())


@pytest.mark.parametrize("reference", ["base", "ema", "sync"])
def test_with_an_adapter_there_is_no_second_base_model(model, reference, tmp_path):
    plain = small_learner(small_config(model, tuning="lora"), tmp_path / "plain")
    learner = learner_with(model, tmp_path, "lora", reference=reference)
    assert learner.reference is not None
    assert learner.reference.copy is None
    adapter = sum(p.numel() for p in plain.policy.parameters() if p.requires_grad)
    assert storage_of(learner) == storage_of(plain) + (0 if reference == "base" else adapter)
    with learner.reference.in_place() as policy:
        assert policy is learner.policy


def test_a_frozen_copy_of_full_tuning_shares_nothing_and_asks_for_no_gradient(model, tmp_path):
    learner = learner_with(model, tmp_path, "full", reference="sync")
    assert learner.reference is not None
    copy = learner.reference.copy
    assert copy is not None
    live = {p.data_ptr() for p in learner.policy.parameters()}
    assert not any(p.data_ptr() in live or p.requires_grad for p in copy.parameters())
    assert copy.trunk is not learner.policy.trunk
    assert copy.scorer.weight is copy.model.get_output_embeddings().weight
