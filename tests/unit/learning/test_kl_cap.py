"""algorithm.kl.cap after the steps of an update: one that went too far is undone, and the next ones are smaller."""
# R5

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner

from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import divergence
from mcprl.learning.packing import make_examples
from mcprl.learning.state import State
from mcprl.records import Batch, Update

CAP = 0.5


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


def learner_with(model: Path, folder: Path, *, rate: float, cap: float | None = CAP, **more: Any) -> TorchLearner:
    algorithm = {"kl": {"cap": cap, **more.pop("kl", {})}, "minibatches": 2, **more}
    return small_learner(small_config(model, algorithm=algorithm, learning_rate=rate, schedule="cosine"), folder)


async def on_policy(learner: TorchLearner) -> Batch:
    """A batch as this policy would have sampled it."""
    groups = small_groups()
    own = iter(await learner.score([t for group in groups for t in group.trajectories]))
    groups = tuple(
        replace(group, trajectories=tuple(replace(t, logprobs=next(own)) for t in group.trajectories))
        for group in groups
    )
    readings = await learner.read([t for group in groups for t in group.trajectories])
    return small_batch(learner._config, groups, readings=readings)


def copied(learner: TorchLearner) -> State:
    return learner._state().copied()


def without_rate(state: State) -> dict[str, Any]:
    return {name: fact for name, fact in state.facts.items() if name != "rate_factor"}


async def kl_of(learner: TorchLearner, batch: Batch) -> float:
    """From the policy that sampled the batch to the learner's now, over the tokens that carry loss."""
    after = await learner.score(batch.trajectories)
    carries = torch.tensor([own for row in batch.learnable for own in row])
    sampled_N, after_N = (
        torch.tensor([x for row in columns for x in row])[carries]
        for columns in ([t.logprobs for t in batch.trajectories], after)
    )
    return float(divergence(sampled_N, after_N, "k3").mean())


async def first_made(learner: TorchLearner) -> tuple[Update, Batch]:
    """Update until one is not undone."""
    for _ in range(20):
        batch = await on_policy(learner)
        update = await learner.update(batch)
        if update.skipped is None:
            return update, batch
    pytest.fail("twenty updates in a row were undone")


async def test_an_update_beyond_the_cap_is_undone_whole_and_the_rate_is_halved(model, tmp_path):
    learner = learner_with(model, tmp_path, rate=1e-4)
    assert (await learner.update(await on_policy(learner))).skipped is None
    learner.optimisation.schedule.base_lrs = [1.0]  # as a user would who sets a far too high rate
    learner.optimisation._set_rates()
    before, rate = copied(learner), learner.optimisation.learning_rate
    update = await learner.update(await on_policy(learner))
    after = copied(learner)
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
    assert without_rate(after) == without_rate(before)
    assert learner.optimisation.learning_rate == pytest.approx(rate / 2)
    assert (update.metrics["update_undone"], update.metrics["update_skipped"]) == (1.0, 1.0)
    assert update.metrics["optimiser_steps"] == 0.0
    assert update.metrics["kl_update"] > CAP
    assert update.weights.version == 1
    assert not (tmp_path / "v2").exists()
    assert update.skipped is not None
    assert "was undone because algorithm.kl.cap is 0.5, and the learning rate was halved to" in update.skipped


async def test_after_jumps_the_rate_falls_until_an_update_stays_below_the_cap(model, tmp_path):
    learner = learner_with(model, tmp_path, rate=1.0)
    update, batch = await first_made(learner)
    assert learner.optimisation.learning_rate < 0.5
    assert update.metrics["update_undone"] == 0.0
    moved = await kl_of(learner, batch)
    assert update.metrics["kl_update"] == pytest.approx(moved, rel=1e-3)
    assert 0.0 < moved <= CAP


async def test_a_halved_rate_is_saved_with_the_learner(model, tmp_path):
    learner = learner_with(model, tmp_path / "one", rate=1.0)
    await first_made(learner)
    (tmp_path / "state").mkdir()
    await learner.save_state(tmp_path / "state")
    resumed = learner_with(model, tmp_path / "two", rate=1.0)
    await resumed.load_state(tmp_path / "state")
    assert resumed.optimisation.learning_rate == learner.optimisation.learning_rate < 1.0
    first, second = [await one.update(await on_policy(one)) for one in (learner, resumed)]
    assert first.metrics["loss"] == second.metrics["loss"]
    one, two = copied(learner), copied(resumed)
    assert all(torch.equal(two.tensors[name], tensor) for name, tensor in one.tensors.items())
    assert one.facts == two.facts


async def test_an_update_that_ends_too_far_from_the_reference_is_undone_and_refreshes_it(model, tmp_path):
    learner = learner_with(model, tmp_path, rate=1e-3, kl={"reference": "sync"})
    batch = await on_policy(learner)
    reference = batch.readings.reference_logprobs
    assert reference is not None
    # Each token is as far from the reference as the cap allows; the estimate is half the square of the log ratio.
    far = tuple(tuple(x - 0.999 if x else 0.0 for x in column) for column in reference)
    before, rate = copied(learner), learner.optimisation.learning_rate
    worse = replace(
        batch,
        readings=replace(batch.readings, reference_logprobs=far),
        advantages=tuple(tuple(float(own) for own in row) for row in batch.learnable),
    )
    update = await learner.update(worse)
    assert update.metrics["update_undone"] == 1.0
    assert update.metrics["kl_update"] < CAP / 2
    assert learner.optimisation.learning_rate == rate
    assert update.metrics["reference_synced"] == 1.0
    assert update.skipped is not None
    assert "halved" not in update.skipped
    assert all(torch.equal(copied(learner).tensors[name], tensor) for name, tensor in before.tensors.items())


@pytest.mark.parametrize(("cap", "more"), [(None, 0), (1e6, 1)])
async def test_a_cap_costs_one_more_forward_pass_and_no_cap_none(model, tmp_path, cap, more):
    learner = learner_with(model, tmp_path, rate=1e-4, cap=cap, kl={"coefficient": 0.1})
    batch = await on_policy(learner)
    passes: list[bool] = []
    learner.policy.register_forward_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    update = await learner.update(batch)
    assert update.skipped is None
    packs = len(learner._packer.divide(make_examples(batch)))
    assert passes.count(False) == more * packs
    assert ("kl_update" in update.metrics) is (cap is not None)
