"""Runs of the pipeline's bench: the training loop as `mcprl train` runs it, and what its metrics say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mcprl.config import (
    AlgorithmConfig,
    EpisodesConfig,
    LearnerConfig,
    ModelConfig,
    RewardsConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    TasksConfig,
    TrainingConfig,
)
from mcprl.training.loop import train
from mcprl.training.run import open_run
from pipelining.vaults import VAULTS, write_servers, write_vaults

__all__ = ["Course", "make_config", "run_once"]

_GROUP_SIZE = 8
# Steps at either end that are not timed: nothing is collected ahead of the first, and nothing after the last.
_UNTIMED = 2


@dataclass(frozen=True, slots=True)
class Course:
    """What one run's metrics.jsonl says, step by step.

    Course("async", 0, [{"step": 0, "reward": 0.13, "step_s": 4.1, "learner_idle_share": 0.6, …}, …])
    """

    pipeline: str
    seed: int
    steps: Sequence[Mapping[str, float]]

    @property
    def rewards(self) -> list[float]:
        return [step["reward"] for step in self.steps]

    @property
    def reward_last_third(self) -> float:
        return fmean(self.rewards[-(len(self.steps) // 3) :])

    def typical(self, name: str) -> float:
        """The median over the steps that are like all others."""
        return median(step[name] for step in self._timed)

    def share(self, name: str) -> float:
        """Of a share of the time of each step, that of all the time."""
        return sum(step[name] * step["step_s"] for step in self._timed) / sum(step["step_s"] for step in self._timed)

    @property
    def staleness_max(self) -> float:
        return max(step["staleness_max"] for step in self.steps)

    @property
    def _timed(self) -> Sequence[Mapping[str, float]]:
        return self.steps[_UNTIMED:-_UNTIMED]


def make_config(folder: Path, pipeline: str, seed: int, *, updates: int) -> RunConfig:
    """A run in `folder`, which differs from its counterpart in `training.max_staleness` only."""
    write_vaults(folder / "vaults.jsonl")
    write_servers(folder / "servers.json")
    training: dict[str, Any] = {
        "max_staleness": int(pipeline == "async"),
        "steps": updates,
        "checkpoint_every": updates,
    }
    return RunConfig(
        name=f"{pipeline}-{seed}",
        seed=seed,
        model=ModelConfig(path=str(folder / "policy"), renderer="chatml", dtype="float32", context_tokens=512),
        tasks=TasksConfig(train=folder / "vaults.jsonl"),
        servers=ServersConfig(file=folder / "servers.json"),
        sampling=SamplingConfig(max_tokens=16),
        episodes=EpisodesConfig(group_size=_GROUP_SIZE, max_concurrent=512),
        rewards=RewardsConfig(calls=0.0, efficiency=0.0, arguments=1.0, penalty=0.0),
        algorithm=AlgorithmConfig(old_logprobs="recomputed", epochs=4, minibatches=1),
        learner=LearnerConfig(
            tuning="full",
            learning_rate=2e-4,
            tokens_per_pack=1 << 16,
            checkpointing=False,
            max_parity_error=1e-4,
        ),
        training=TrainingConfig(tasks_per_step=len(VAULTS), outputs=folder / "runs", **training),
    )


async def run_once(config: RunConfig) -> Course:
    """Train from the first step to the last."""
    async with open_run(config, _Silent()) as run:
        await train(run)
        lines = (run.folder.path / "metrics.jsonl").read_text().splitlines()
    pipeline = "async" if config.training.max_staleness else "sync"
    return Course(pipeline, config.seed, [json.loads(line) for line in lines])


class _Silent:
    """Tells nobody."""

    def stage(self, text: str) -> None: ...

    def episode_finished(self, step: int, outcome: object) -> None: ...

    def step_finished(self, step: int, metrics: object, verdicts: object) -> None: ...
