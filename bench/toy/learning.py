"""Runs of the toy task: play, read, make a batch, update, as a run of mcprl does, and what each update showed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mcprl.config import (
    AlgorithmConfig,
    CriticConfig,
    EpisodesConfig,
    LearnerConfig,
    ModelConfig,
    RunConfig,
    ServersConfig,
    TasksConfig,
    TrainingConfig,
)
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch
from mcprl.records import StopReason, Weights
from mcprl.seeds import derive_seed
from toy.locks import TASKS, best_return
from toy.playing import make_model, play, published_model

__all__ = ["ALGORITHMS", "Moment", "best_mean_return", "learn"]

GROUP_SIZE = 16
_CRITIC = {"advantages": "gae"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"advantages": "grpo"},
    "ppo": {**_CRITIC, "critic": CriticConfig(step="token", learning_rate=1e-2)},
    "ppo_turn": {**_CRITIC, "critic": CriticConfig(step="turn", learning_rate=1e-2)},
}
_LEARNING_RATE = {"full": 2e-3, "lora": 6e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one update had to learn from and what it showed; the last two are None without a value head.

    Moment(mean_return=0.61, cut_share=0.72, parity=4e-07, explained_variance=0.31, value_loss=0.12)
    """

    mean_return: float
    cut_share: float
    parity: float
    explained_variance: float | None
    value_loss: float | None


def best_mean_return() -> float:
    """What a perfect policy earns an episode, over all tasks alike."""
    return fmean(best_return(task) for task in TASKS)


def make_config(model: Path, algorithm: str, seed: int, *, tuning: str, updates: int) -> RunConfig:
    return RunConfig(
        name="toy",
        seed=seed,
        model=ModelConfig(path=str(model), dtype="float32"),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        episodes=EpisodesConfig(group_size=GROUP_SIZE),
        algorithm=AlgorithmConfig(epochs=2, minibatches=2, entropy=0.02, **ALGORITHMS[algorithm]),
        learner=LearnerConfig.model_validate(
            {
                "tuning": tuning,
                "learning_rate": _LEARNING_RATE[tuning],
                "schedule": "linear",
                "lora_rank": 8,
                "lora_alpha": 16,
                "checkpointing": False,
                "max_parity_error": 1e-4,
            }
        ),
        training=TrainingConfig(steps=updates, tasks_per_step=len(TASKS)),
    )


async def learn(folder: Path, algorithm: str, seed: int, *, updates: int, tuning: str = "full") -> list[Moment]:
    """Train one policy from random weights; what each update showed."""
    base = folder / "base"
    make_model(base, derive_seed(seed, "model"))
    config = make_config(base, algorithm, seed, tuning=tuning, updates=updates)
    learner = TorchLearner(config, folder=folder / "weights", grammars=None)
    generator = torch.Generator().manual_seed(derive_seed(seed, "sampling"))
    weights = Weights(version=0)
    moments: list[Moment] = []
    for step in range(updates):
        model = await asyncio.to_thread(published_model, weights, base)
        groups = play(model, step, weights.version, group_size=GROUP_SIZE, generator=generator)
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        batch = make_batch(step, groups, config.algorithm, await learner.read(trajectories))
        update = await learner.update(batch)
        weights = update.weights
        moments.append(
            Moment(
                mean_return=fmean(t.reward for t in trajectories),
                cut_share=fmean(t.stop is StopReason.TURN_LIMIT for t in trajectories),
                parity=update.metrics["parity_logprob_max_abs_error"],
                explained_variance=update.metrics.get("explained_variance"),
                value_loss=update.metrics.get("value_loss"),
            )
        )
    return moments
