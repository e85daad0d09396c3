"""The learner's state, saved and loaded: the next update is bit for bit that of a learner that never stopped."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from mcprl.config import RunConfig
from mcprl.errors import OtherStateError, StorageError
from mcprl.learning import TorchLearner
from mcprl.learning.state import Origin, State, read_state, write_state
from mcprl.records import Batch, Update

NAN = float("nan")
TIMES = {"update_s", "replay_s"}
LORA = {"lora_rank": 2, "tokens_per_pack": 38, "learning_rate": 1e-3}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an adapter with a moving average": (
        {"kl": {"coefficient": 0.1, "target": 0.05, "reference": "ema", "lag": 2}},
        LORA,
    ),
    "an adapter with a copy and a schedule": (
        {"kl": {"coefficient": 0.1, "reference": "sync", "lag": 2}, "minibatches": 2},
        {**LORA, "schedule": "cosine", "warmup_steps": 3},
    ),
    "all weights with a frozen copy": ({"kl": {"coefficient": 0.1}}, {**LORA, "tuning": "full"}),
    "all weights with a copy that moves": (
        {"kl": {"coefficient": 0.1, "reference": "ema", "lag": 2}},
        {**LORA, "tuning": "full"},
    ),
    "a value head": ({"advantages": "gae", "minibatches": 2}, LORA),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_small_model(tmp_path_factory.mktemp("state-model"), "qwen3")
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(67)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def without_model_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters are written without the page about them, which takes as long as the rest of an update."""
    monkeypatch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)


async def next_batch(learner: TorchLearner, config: RunConfig, step: int) -> Batch:
    groups = small_groups()
    readings = await learner.read([t for group in groups for t in group.trajectories])
    return replace(small_batch(config, groups, readings=readings), step=step)


async def update(learner: TorchLearner, config: RunConfig, step: int, *, spoilt: bool = False) -> Update:
    batch = await next_batch(learner, config, step)
    if spoilt:
        batch = replace(batch, advantages=tuple(tuple(NAN for _ in row) for row in batch.advantages))
    made = await learner.update(batch)
    assert (made.skipped is not None) == spoilt
    return made


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def reference_updates(learner: TorchLearner) -> int | None:
    """By them a moving reference moves; one that never does only counts them."""
    moves = learner.reference is not None and learner.reference._kl.reference != "base"
    return learner.reference._updates if moves else None


def fingerprint(learner: TorchLearner) -> dict[str, Any]:
    """All that a learner holds, read from its parts and not by the way that saves them."""
    optimisation = learner.optimisation
    held = dict(learner.policy.named_parameters())
    if learner.reference is not None and learner.reference.copy is not None:
        held |= {f"copy {name}": tensor for name, tensor in learner.reference.copy.named_parameters()}
    moments = {
        f"{number} {name}": tensor
        for number, own in optimisation.optimiser.state_dict()["state"].items()
        for name, tensor in own.items()
    }
    return {
        "parameters": digest(held),
        "moments": digest(moments),
        "generator": digest({"": torch.get_rng_state()}),
        "groups": repr(optimisation.optimiser.state_dict()["param_groups"]),
        "schedule": optimisation.schedule.last_epoch,
        "reference updates": reference_updates(learner),
        "spoilt in a row": learner._non_finite_in_a_row,
        "version": learner._weights.version,
    }


def figures(made: Update) -> dict[str, float]:
    return {name: value for name, value in made.metrics.items() if name not in TIMES}


def written(folder: Path) -> dict[str, str]:
    """What the sampler would load, by the name of the file."""
    return {file.name: digest(load_file(file)) for file in folder.glob("*.safetensors")}


async def saved(learner: TorchLearner, folder: Path) -> Path:
    await asyncio.to_thread(folder.mkdir)
    await learner.save_state(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
async def test_a_learner_that_loads_a_state_goes_on_as_if_it_had_never_stopped(case, model, tmp_path):
    algorithm, settings = CASES[case]
    config = small_config(model, algorithm=algorithm, **settings)
    steady = small_learner(config, tmp_path / "steady")
    for step in range(3):
        await update(steady, config, step)
    state = await saved(steady, tmp_path / "state")
    at_saving = fingerprint(steady)
    expected = [await update(steady, config, step) for step in (3, 4)]

    torch.manual_seed(99)
    resumed = small_learner(config, tmp_path / "resumed")
    weights = await resumed.load_state(state)
    assert fingerprint(resumed) == at_saving
    assert weights.version == 3
    assert written(tmp_path / "resumed" / "v3") == written(tmp_path / "steady" / "v3") != {}
    found = [await update(resumed, config, step) for step in (3, 4)]
    assert [figures(made) for made in found] == [figures(made) for made in expected]
    assert [made.weights.version for made in found] == [4, 5]
    # The generator is one for the whole process, and both learners went on with it.
    assert fingerprint(resumed) | {"generator": ""} == fingerprint(steady) | {"generator": ""}
    assert fingerprint(resumed)["parameters"] != at_saving["parameters"]
    assert written(tmp_path / "resumed" / "v5") == written(tmp_path / "steady" / "v5") != {}


async def test_a_state_saved_after_a_spoilt_update_remembers_that_it_was_spoilt(model, tmp_path):
    config = small_config(model, **LORA)
    steady = small_learner(config, tmp_path / "steady")
    await update(steady, config, 0)
    await update(steady, config, 1, spoilt=True)
    state = await saved(steady, tmp_path / "state")
    resumed = small_learner(config, tmp_path / "resumed")
    assert (await resumed.load_state(state)).version == 1
    for learner in (steady, resumed):
        made = await update(learner, config, 2, spoilt=True)
        assert made.metrics["nonfinite_in_a_row"] == 2.0
        await update(learner, config, 3)
    assert fingerprint(resumed) == fingerprint(steady)


async def test_a_state_saved_before_the_first_update_is_that_of_a_new_learner(model, tmp_path):
    config = small_config(model, **LORA)
    new = small_learner(config, tmp_path / "new")
    state = await saved(new, tmp_path / "state")
    other = small_learner(config, tmp_path / "other")
    await update(other, config, 0)
    weights = await other.load_state(state)  # moments that are there are dropped again
    assert (weights.version, weights.adapter, weights.model) == (0, None, None)
    assert fingerprint(other) == fingerprint(new)
    assert not other.optimisation.optimiser.state
    for learner in (new, other):
        await update(learner, config, 0)
    assert fingerprint(other) == fingerprint(new)


async def test_the_weights_of_a_process_that_went_further_are_replaced_whole(model, tmp_path):
    config = small_config(model, **LORA)
    first = small_learner(config, tmp_path / "weights")
    await update(first, config, 0)
    state = await saved(first, tmp_path / "state")
    whole = written(tmp_path / "weights" / "v1")
    for version in ("v1", "v2"):
        (tmp_path / "weights" / version).mkdir(exist_ok=True)
        (tmp_path / "weights" / version / "adapter_model.safetensors").write_bytes(b"half")
        (tmp_path / "weights" / version / "left over").touch()
    resumed = small_learner(config, tmp_path / "weights")
    weights = await resumed.load_state(state)
    assert weights.adapter == tmp_path / "weights" / "v1"
    assert written(weights.adapter) == whole
    await update(resumed, config, 1)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"v1", "v2"}
    assert not list((tmp_path / "weights").glob("*/left over"))


async def test_the_files_are_safetensors_and_json_with_names_that_can_be_read(model, tmp_path):
    algorithm, settings = CASES["an adapter with a moving average"]
    config = small_config(model, algorithm=algorithm, **settings)
    learner = small_learner(config, tmp_path / "weights")
    await update(learner, config, 0)
    state = await saved(learner, tmp_path / "state")
    assert {path.name for path in state.iterdir()} == {"learner-0-of-1.safetensors", "learner-0-of-1.json"}
    tensors = load_file(state / "learner-0-of-1.safetensors")
    name = "model.base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    for prefix in ("policy", "adamw/step", "adamw/exp_avg", "adamw/exp_avg_sq"):
        assert f"{prefix}/{name}" in tensors
    assert any(name.startswith("reference/") for name in tensors)
    assert json.loads((state / "learner-0-of-1.json").read_text())["facts"]["version"] == 1


@pytest.mark.parametrize("case", CASES)
async def test_the_size_of_a_state_is_known_before_the_first_update(case, model, tmp_path):
    algorithm, settings = CASES[case]
    config = small_config(model, algorithm=algorithm, **settings)
    learner = small_learner(config, tmp_path / "weights")
    forecast = await learner.state_bytes()
    await update(learner, config, 0)
    state = await saved(learner, tmp_path / "state")
    assert sum(file.stat().st_size for file in state.iterdir()) == pytest.approx(forecast, rel=0.03)
    assert await learner.state_bytes() == pytest.approx(forecast, rel=0.01)


@pytest.mark.parametrize(
    ("algorithm", "settings", "words"),
    [
        ({}, {"lora_rank": 3}, r"lora_A.default.weight as float32 \[2, 40\], .* \[3, 40\] .*lora_rank was 2, now 3"),
        ({}, {"tuning": "full"}, "learner.tuning was lora, now full"),
        ({"advantages": "gae"}, {}, "is missing policy/value_head.weight .*algorithm.advantages was grpo, now gae"),
        ({"kl": {"coefficient": 0.1, "reference": "ema"}}, {}, "is missing reference/"),
    ],
)
async def test_a_state_of_other_settings_is_refused_in_words_and_changes_nothing(
    algorithm, settings, words, model, tmp_path
):
    learner = small_learner(small_config(model, **LORA), tmp_path / "one")
    state = await saved(learner, tmp_path / "state")
    other = small_learner(small_config(model, algorithm=algorithm, **LORA | settings), tmp_path / "two")
    before = fingerprint(other)
    with pytest.raises(OtherStateError, match=words):
        await other.load_state(state)
    assert fingerprint(other) == before


async def test_a_state_with_more_than_the_learner_has_is_refused(model, tmp_path):
    learner = small_learner(small_config(model, algorithm={"advantages": "gae"}, **LORA), tmp_path / "one")
    state = await saved(learner, tmp_path / "state")
    with pytest.raises(OtherStateError, match=r"contains policy/value_head\.bias, which the learner does not have"):
        await small_learner(small_config(model, **LORA), tmp_path / "two").load_state(state)


async def test_a_state_of_other_processes_is_refused_in_words(model, tmp_path):
    learner = small_learner(small_config(model, **LORA), tmp_path / "one")
    state = await saved(learner, tmp_path / "state")
    told = json.loads((state / "learner-0-of-1.json").read_text()) | {"processes": 2, "sharding": "zero3"}
    (state / "learner-0-of-1.json").unlink()
    (state / "learner-0-of-2.json").write_text(json.dumps(told))
    with pytest.raises(OtherStateError, match="saved by 2 processes with zero3, but is being loaded by one process"):
        await learner.load_state(state)
    (state / "learner-0-of-2.json").unlink()
    with pytest.raises(OtherStateError, match="contains no learner state"):
        await learner.load_state(state)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (4, 3)])
async def test_fewer_or_more_processes_load_the_same_rows(before, after, model, tmp_path):
    config = small_config(model, **LORA)
    whole = {
        "policy/a": torch.arange(20.0).reshape(5, 4),
        "policy/one row": torch.tensor([[1.5, 2.5]]),  # some processes have no row of it
        "adamw/step/a": torch.tensor(3.0),
        "rng/cpu": torch.arange(7, dtype=torch.uint8),
    }

    def shard(name: str, count: int, rank: int) -> torch.Tensor:
        if not name.startswith("policy/"):
            return whole[name]
        rows = torch.chunk(whole[name], count)  # as FSDP2 does
        return (rows[rank] if rank < len(rows) else whole[name][:0]).clone()

    for rank in range(before):
        mine = {name: shard(name, before, rank) for name in whole}
        write_state(State(tensors=mine, facts={"version": 4}), Origin.of(config, before), tmp_path, rank)
    for rank in range(after):
        state, saved_by = read_state(Origin.of(config, after), tmp_path, rank)
        assert (saved_by.processes, state.facts) == (before, {"version": 4})
        for name, tensor in state.tensors.items():
            assert torch.equal(tensor, shard(name, after, rank)), name


async def test_a_folder_that_cannot_be_written_is_a_fault_of_storage_and_the_learner_goes_on(model, tmp_path):
    config = small_config(model, **LORA)
    learner = small_learner(config, tmp_path / "weights")
    with pytest.raises(StorageError, match=r"writing the learner's state to .* failed: No such file"):
        await learner.save_state(tmp_path / "missing")
    await update(learner, config, 0)
