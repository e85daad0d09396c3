"""One seed, one result: how many episodes are alive at once, and which answer comes first, changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcprl.training.loop import train
from mcprl.training.run import open_run

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from crashing.evidence import all_trajectories, differences, evidence
from crashing.small_runs import small_run
from crashing.speaking import calling_tools

pytestmark = pytest.mark.process

STEPS = 2


class Listener:
    """Keeps the order in which episodes finished."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, str, int]] = []

    def stage(self, text) -> None: ...

    def episode_finished(self, step, outcome) -> None:
        self.arrivals.append((step, outcome.task_id, outcome.member))

    def step_finished(self, step, metrics, verdicts) -> None: ...


def batch_of(batch) -> list[object]:
    """All of a batch that an update depends on."""
    names = [(t.step, t.task_id, t.member, t.token_ids, t.logprobs) for t in batch.trajectories]
    rest = [getattr(batch, name) for name in batch.__dataclass_fields__ if name not in ("groups", "demonstrations")]
    return [names, *rest]


async def play(folder: Path, model: Path, at_once: int):
    """A run with so many episodes at once: what it left, its batches, and the order in which its episodes finished."""
    config = small_run(folder, "critic", model=model, steps=STEPS, tasks_per_step=4)
    config = config.model_copy(
        update={"episodes": config.episodes.model_copy(update={"max_concurrent": at_once})},
    )
    listener, batches = Listener(), []
    with calling_tools():
        async with open_run(config, listener) as run:
            plain = run.learner.update

            async def update(batch):
                batches.append(batch_of(batch))
                return await plain(batch)

            run.learner.update = update
            await train(run)
    return run.folder.path, batches, listener.arrivals


async def test_trajectories_batches_and_weights_are_the_same_with_1_4_and_16_episodes_at_once(small_qwen3, tmp_path):
    (path, batches, arrivals), *others = [await play(tmp_path / str(n), small_qwen3, n) for n in (1, 4, 16)]
    assert len(all_trajectories(path)) == len(set(arrivals)) == STEPS * 16
    # The tool was called, and the runs differed in what must not matter.
    assert any(turn.observations for t in all_trajectories(path) for turn in t.turns)
    assert any(other != arrivals for *_, other in others)
    for other_path, other_batches, _ in others:
        assert differences(evidence(path), evidence(other_path)) == []
        assert other_batches == batches
