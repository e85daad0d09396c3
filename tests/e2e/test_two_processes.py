"""The learner in two processes moves the weights as one process does, and the loss of a process is never waited out.

Both sides are real: two processes that talk by gloo, FSDP2 and DeepSpeed's ZeRO-3, against the learner in this process.
"""
# R23

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from mcprl.config import RunConfig
from mcprl.errors import LearnerLostError, OtherStateError
from mcprl.learning import TorchLearner
from mcprl.learning.distributed import DistributedLearner
from mcprl.learning.update import minibatches_of
from mcprl.records import Batch, Update, Weights

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "learning"))
from small_models import save_small_model, small_batch, small_config, small_groups

pytestmark = pytest.mark.process

VOCABULARY = 67
KL_LOSS = {"kl": {"coefficient": 0.1}}
CASES = {
    # Three packs for two processes: one of them computes one for nothing.
    "fsdp2-lora": ("qwen3", {"sharding": "fsdp2", "tuning": "lora", "tokens_per_pack": 38, "checkpointing": True},
                   {"kl": {"coefficient": 0.1, "reference": "ema", "lag": 2}}),
    "fsdp2-full": ("qwen3", {"sharding": "fsdp2", "tuning": "full", "tokens_per_pack": 1},
                   {"advantages": "gae", "minibatches": 2, **KL_LOSS}),
    "zero3-lora": ("llama", {"sharding": "zero3", "tuning": "lora", "tokens_per_pack": 38},
                   {"minibatches": 2, **KL_LOSS}),
    "zero3-full": ("qwen3", {"sharding": "zero3", "tuning": "full", "tokens_per_pack": 38, "checkpointing": True},
                   {"advantages": "gae"}),
}  # fmt: skip
FULL = ("zero3-full",)  # the others divide the weights in both ways, and train adapters and whole weights
# With a reference that moves, and with an engine's own shares: starting processes is what takes the time.
RESUMED = ("fsdp2-lora", "zero3-full")
TIMES = {"update_s", "replay_s"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory):
    """Folders of small models with a tokenizer, which whole weights are saved with."""

    def make(architecture: str) -> Path:
        folder = save_small_model(tmp_path_factory.mktemp("model"), architecture, vocabulary=VOCABULARY)
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(folder)
        return folder

    return make


def five_episodes() -> Any:
    """Two groups, one of two episodes and one of three."""
    first, second = small_groups(vocabulary=VOCABULARY)
    third = replace(first.trajectories[1], task_id=second.task.id, member=2)
    return first, replace(second, trajectories=(*second.trajectories, third))


def spoilt(batch: Batch, config: RunConfig) -> Batch:
    """The batch with an infinite ratio in its last minibatch, behind the steps of the others."""
    *_, last = minibatches_of(batch, config)
    at_fault = next(i for i in last if batch.trajectories[i].reward == 0)
    groups = []
    for group in batch.groups:
        members = [
            replace(t, logprobs=tuple(-1000.0 if own else 0.0 for own in t.sampled))
            if t is batch.trajectories[at_fault]
            else t
            for t in group.trajectories
        ]
        groups.append(replace(group, trajectories=tuple(members)))
    return replace(batch, groups=tuple(groups))


async def updates(learner: Any, config: RunConfig, steps: range, *, spoil: bool = False) -> list[Update]:
    """As a run makes them; the second one imitates too. With `spoil`, another one before the third must be undone."""
    groups = five_episodes()
    made: list[Update] = []
    for step in steps:
        readings = await learner.read([t for group in groups for t in group.trajectories])
        more = {"demonstrations": groups[0].trajectories, "demonstration_weight": 0.3} if step == 1 else {}
        batch: Batch = replace(small_batch(config, groups, readings=readings, **more), step=step)
        if spoil and step == 2:
            undone = await learner.update(spoilt(batch, config))
            assert undone.skipped is not None
            assert re.search(r"is not a finite number in episode \d of task task-", undone.skipped)
        made.append(await learner.update(batch))
    return made


def saved(weights: Weights) -> dict[str, torch.Tensor]:
    folder = weights.adapter or weights.model
    assert folder is not None
    [file] = folder.glob("*.safetensors")
    return load_file(file)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def require_the_same_when_resumed(config: RunConfig, state: Path, folder: Path, found: list[Update]) -> None:
    """New processes that load the state after the first update make the second and third bit for bit. One process loads
    the same weights from the shards of FSDP2, and refuses in words to load those of ZeRO-3."""
    async with DistributedLearner(config, folder=folder / "resumed" / "weights", grammars=None) as learner:
        first = await learner.load_state(state)
        again = [
            Update(step=0, weights=first, metrics={}, ratios=()),
            *await updates(learner, config, range(1, 3), spoil=True),
        ]
    for one, two in zip(found, again, strict=True):
        assert two.weights.version == one.weights.version
        before, after = saved(one.weights), saved(two.weights)
        assert set(before) == set(after)
        assert all(torch.equal(before[name], after[name]) for name in before)
        if two.metrics:
            assert {n: v for n, v in two.metrics.items() if n not in TIMES} == {
                n: v for n, v in one.metrics.items() if n not in TIMES
            }
    alone = TorchLearner(config, folder=folder / "alone" / "weights", grammars=None)
    if config.learner.sharding == "zero3":
        with pytest.raises(OtherStateError, match=r"2 processes with zero3, .* by one process"):
            await alone.load_state(state)
        return
    before, after = saved(first), saved(await alone.load_state(state))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.full] if c in FULL else []) for c in CASES])
async def test_two_processes_move_the_weights_as_one_does(case, model_folder, tmp_path, record_property):
    architecture, settings, algorithm = CASES[case]
    settings = {"learning_rate": 1e-3, "processes": 2, **settings}
    config = small_config(model_folder(architecture), algorithm=algorithm, **settings)
    alone = TorchLearner(config, folder=tmp_path / "one" / "weights", grammars=None)
    expected = await updates(alone, config, range(3))
    state = tmp_path / "state"
    state.mkdir()
    async with DistributedLearner(config, folder=tmp_path / "two" / "weights", grammars=None) as learner:
        forecast = await learner.state_bytes()
        found = await updates(learner, config, range(1))
        await learner.save_state(state)
        found += await updates(learner, config, range(1, 3), spoil=True)
        scores = await learner.score(small_groups()[0].trajectories)
        pids = learner.pids
    assert not any(alive(pid) for pid in pids)
    for one, two in zip(await alone.score(small_groups()[0].trajectories), scores, strict=True):
        assert two == pytest.approx(one, abs=1e-4)

    assert sum(file.stat().st_size for file in state.iterdir()) == pytest.approx(forecast, rel=0.03)
    if case in RESUMED:
        await require_the_same_when_resumed(config, state, tmp_path, found)

    for one, two in zip(expected, found, strict=True):
        assert two.skipped is None
        assert set(two.metrics) == set(one.metrics)
        for name in set(one.metrics) - TIMES:
            assert two.metrics[name] == pytest.approx(one.metrics[name], rel=1e-4, abs=1e-4), name
    before, one, two = saved(expected[0].weights), saved(expected[-1].weights), saved(found[-1].weights)
    assert set(one) == set(two)
    moved = max(float((one[name] - before[name]).abs().max()) for name in one)
    differs = max(float((one[name] - two[name]).abs().max()) for name in one)
    record_property(f"largest difference of a weight, {case}", differs)
    assert moved > 1e-3
    assert differs < 1e-4


@pytest.mark.parametrize("sharding", ["fsdp2", pytest.param("zero3", marks=pytest.mark.full)])
async def test_two_processes_undo_an_update_beyond_the_cap_as_one_does(sharding, model_folder, tmp_path):
    algorithm = {"old_logprobs": "recomputed", "minibatches": 2, "kl": {"cap": 0.5}}
    settings = {"sharding": sharding, "learning_rate": 1.0, "processes": 2, "tokens_per_pack": 38}
    config = small_config(model_folder("llama"), algorithm=algorithm, **settings)
    groups = five_episodes()
    trajectories = [t for group in groups for t in group.trajectories]

    async def jump(learner: Any) -> tuple[Any, Update, Any, Update]:
        before = await learner.read(trajectories)
        undone = await learner.update(small_batch(config, groups, readings=before))
        after = await learner.read(trajectories)
        return before, undone, after, await learner.update(small_batch(config, groups, readings=after))

    alone = await jump(TorchLearner(config, folder=tmp_path / "one" / "weights", grammars=None))
    async with DistributedLearner(config, folder=tmp_path / "two" / "weights", grammars=None) as learner:
        before, undone, after, again = await jump(learner)
    assert after == before
    assert (undone.metrics["update_undone"], undone.weights.version) == (1.0, 0)
    assert undone.metrics["kl_update"] == pytest.approx(alone[1].metrics["kl_update"], rel=1e-3)
    assert again.metrics["learning_rate"] == alone[3].metrics["learning_rate"] == 0.5


async def test_the_death_of_a_process_in_an_update_is_told_at_once_and_leaves_nothing_running(model_folder, tmp_path):
    config = small_config(model_folder("llama"), learning_rate=1e-3, processes=2, tokens_per_pack=1)
    async with DistributedLearner(config, folder=tmp_path / "weights", grammars=None) as learner:
        pids = learner.pids
        os.kill(pids[1], signal.SIGSTOP)  # the other one now waits for it in the middle of the update
        update = asyncio.create_task(learner.update(small_batch(config)))
        await asyncio.wait({update}, timeout=0.5)
        assert not update.done()
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(LearnerLostError, match=r"learner process 1 of 2 ended with exit code -9"):
            await asyncio.wait_for(update, 10)
        assert not any(alive(pid) for pid in pids)
        with pytest.raises(LearnerLostError, match="were stopped after an error"):
            await learner.score(small_groups()[0].trajectories)
