"""Does it learn? GRPO, and PPO with a value head, on a toy task in several turns, with the learner that real runs use.

The task is in bench/toy/locks.py: up to three turns, a reward in each, episodes that end by themselves and some that a
limit cuts off. The model is a random one of two layers. Before each update the logprobs of the sampler, which reads the
weights that the learner wrote, and those of the learner must agree to 1e-3, or the run stops.

  best                     what a perfect policy earns an episode, by enumeration of all choices
  runs                     for each kind of run, one entry a seed:
    share_of_best            mean return over the last 5 updates, as a share of `best`
    updates_to_90            updates made when the episodes first earned 90% of `best`; null: never
    explained_variance       of the returns, by the value head; mean over the last 5 updates
    value_loss_first, value_loss_last    mean over the first 5 updates, and over the last 5
    cpu_s                    processor time
  grpo_share, ppo_share    the lowest share_of_best of a kind
  lora_share               the same where an adapter is trained
  explained_variance       the lowest of all runs with a value head
  value_loss_ratio         the largest value_loss_last / value_loss_first
  parity                   the largest |Δlogprob| between sampler and learner
  slowest_cpu_s            processor time of the slowest run

`grpo` and `ppo` train all weights, `ppo_turn` has a critic whose steps are turns (there is no bar for its return),
`…_lora` train an adapter of rank 8. Full size: 60 updates, five seeds (an adapter: two), and the figure of
docs/toy-task.md is drawn anew. `--ci`: 40 updates, two seeds of `grpo` and `ppo`, one of `grpo_lora`, and no figure.

    python bench/toy_task.py [--ci]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from servers.harness import run_bench, say
from toy.drawing import draw
from toy.learning import Moment, best_mean_return, learn

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "toy-task.svg"
FULL_UPDATES, CI_UPDATES = 60, 40
FULL_SEEDS = {"grpo": 5, "ppo": 5, "ppo_turn": 5, "grpo_lora": 2, "ppo_lora": 2}
CI_SEEDS = {"grpo": 2, "ppo": 2, "grpo_lora": 1}
ENDS = 5  # how many updates the mean at the beginning and at the end is taken over
BARS = {
    "grpo_share": (">=", 0.9),
    "ppo_share": (">=", 0.9),
    "lora_share": (">=", 0.8),
    "explained_variance": (">=", 0.5),
    "value_loss_ratio": ("<=", 0.5),
    "parity": ("<=", 1e-3),
}
SPEED_BARS = {"slowest_cpu_s": ("<=", 20)}


def figures_of(moments: Sequence[Moment], best: float, cpu_s: float) -> dict[str, Any]:
    """Of one run."""
    reached = [number for number, moment in enumerate(moments) if moment.mean_return >= 0.9 * best]
    found: dict[str, Any] = {
        "share_of_best": round(fmean(m.mean_return for m in moments[-ENDS:]) / best, 3),
        "updates_to_90": reached[0] if reached else None,
        "cpu_s": round(cpu_s, 1),
    }
    variances = [m.explained_variance for m in moments if m.explained_variance is not None]
    losses = [m.value_loss for m in moments if m.value_loss is not None]
    if losses:
        found |= {
            "explained_variance": round(fmean(variances[-ENDS:]), 3),
            "value_loss_first": round(fmean(losses[:ENDS]), 4),
            "value_loss_last": round(fmean(losses[-ENDS:]), 4),
        }
    return found


def lowest_share(runs: dict[str, list[dict[str, Any]]], kinds: Sequence[str]) -> float:
    return min(run["share_of_best"] for kind in kinds for run in runs.get(kind, []))


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    best = best_mean_return()
    played: dict[str, list[list[Moment]]] = {}
    runs: dict[str, list[dict[str, Any]]] = {}
    for kind, seeds in (CI_SEEDS if ci else FULL_SEEDS).items():
        algorithm, tuning = kind.removesuffix("_lora"), "lora" if kind.endswith("_lora") else "full"
        for seed in range(seeds):
            started = time.process_time()
            own = folder / f"{kind}-{seed}"
            moments = await learn(own, algorithm, seed, tuning=tuning, updates=CI_UPDATES if ci else FULL_UPDATES)
            played.setdefault(kind, []).append(moments)
            runs.setdefault(kind, []).append(figures_of(moments, best, time.process_time() - started))
            say(f"{kind}, seed {seed}: {runs[kind][-1]}")
    if not ci:
        draw(played, best, FIGURE)
    every = [run for own in runs.values() for run in own]
    critics = [run for run in every if "explained_variance" in run]
    return {
        "best": round(best, 4),
        "runs": runs,
        "grpo_share": lowest_share(runs, ["grpo"]),
        "ppo_share": lowest_share(runs, ["ppo"]),
        "lora_share": lowest_share(runs, ["grpo_lora", "ppo_lora"]),
        "explained_variance": min(run["explained_variance"] for run in critics),
        "value_loss_ratio": round(max(run["value_loss_last"] / run["value_loss_first"] for run in critics), 3),
        "parity": max(moment.parity for own in played.values() for moments in own for moment in moments),
        "slowest_cpu_s": max(run["cpu_s"] for run in every),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
