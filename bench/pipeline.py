"""What collecting ahead gains: the same run with `training.max_staleness` 0 (sync) and 1 (async).

The task is in bench/pipelining/vaults.py: two calls an episode, each of a real MCP server that sleeps for a second, and
a policy that knows how calls are written but not which are right. The runs are whole runs of mcprl, with vLLM and
`algorithm.old_logprobs` recomputed in both; they differ in `training.max_staleness` alone. vLLM and the learner have
one thread each. All figures come from their metrics.jsonl. The first two steps and the last two are not timed.

  updates_per_hour_sync, updates_per_hour_async    from the median duration of a step; median over the seeds
  ratio                     async / sync of the same seed; median over the seeds
  collect_s, update_s       of sync: median seconds of a step's collection, and of its update
  reward_last_third_sync, reward_last_third_async    mean reward over the last third of the steps, one entry a seed
  reward_difference         mean over the seeds of async − sync of that reward
  reward_difference_se      its standard error, over the seeds
  reward_spread             standard deviation over the seeds of the sync reward
  reward_shortfall          how far the difference is below 0, less what seeds differ by: the larger of `reward_spread`
                            and `reward_difference_se`, but at least 0.03. Above 0, async is worse
  learner_idle_sync, learner_idle_async, sampler_idle_sync, sampler_idle_async    shares of the time; mean over seeds
  staleness_max             versions that the oldest token of any update was behind

Full size: 24 updates, three seeds, and the figure of docs/pipeline.md is drawn anew. `--ci`: 8 updates, one seed, no
figure; one seed says nothing of what seeds differ by, so `reward_shortfall` is 0 there and holds nothing.

    python bench/pipeline.py [--ci]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

from pipelining.drawing import draw
from pipelining.policy import make_policy
from pipelining.running import Course, make_config, run_once
from servers.harness import run_bench, say

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "pipeline-idle.svg"
FULL_UPDATES, FULL_SEEDS = 24, 3
CI_UPDATES, CI_SEEDS = 8, 1
LEAST_SPREAD = 0.03  # three seeds can agree by chance
BARS = {"staleness_max": ("<=", 1), "reward_shortfall": ("<=", 0.0)}
SPEED_BARS = {"ratio": (">=", 1.5)}


def speeds(courses: dict[str, list[Course]]) -> dict[str, Any]:
    """How fast the runs were, and who idled."""
    step_s = {pipeline: [course.typical("step_s") for course in own] for pipeline, own in courses.items()}
    pairs = zip(step_s["sync"], step_s["async"], strict=True)
    found: dict[str, Any] = {
        "updates_per_hour_sync": round(3600 / median(step_s["sync"])),
        "updates_per_hour_async": round(3600 / median(step_s["async"])),
        "ratio": round(median(sync / ahead for sync, ahead in pairs), 3),
        "collect_s": round(median(course.typical("collect_s") for course in courses["sync"]), 2),
        "update_s": round(median(course.typical("update_s") for course in courses["sync"]), 2),
        "staleness_max": max(course.staleness_max for course in courses["async"]),
    }
    for part in ("learner", "sampler"):
        for pipeline, own in courses.items():
            found[f"{part}_idle_{pipeline}"] = round(fmean(course.share(f"{part}_idle_share") for course in own), 3)
    return found


def rewards(courses: dict[str, list[Course]]) -> dict[str, Any]:
    """What the runs learned, and whether async learned less than seeds explain."""
    sync, ahead = ([course.reward_last_third for course in courses[pipeline]] for pipeline in ("sync", "async"))
    found: dict[str, Any] = {
        "reward_last_third_sync": [round(reward, 3) for reward in sync],
        "reward_last_third_async": [round(reward, 3) for reward in ahead],
    }
    differences = [one - other for one, other in zip(ahead, sync, strict=True)]
    found["reward_difference"] = round(fmean(differences), 4)
    if len(differences) == 1:
        return found | {"reward_shortfall": 0.0}  # nothing is known of how far seeds differ
    error, spread = stdev(differences) / len(differences) ** 0.5, stdev(sync)
    shortfall = -fmean(differences) - max(spread, error, LEAST_SPREAD)
    return found | {
        "reward_difference_se": round(error, 4),
        "reward_spread": round(spread, 4),
        "reward_shortfall": round(max(0.0, shortfall), 4),
    }


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    # A core for the learner and one for everything else: the sampler, the tools' server, the loop.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for vLLM
    updates, seeds = (CI_UPDATES, CI_SEEDS) if ci else (FULL_UPDATES, FULL_SEEDS)
    (folder / "policy").mkdir()
    await make_policy(folder / "policy", make_config(folder, "sync", 0, updates=updates))
    say("the policy knows how calls are written")
    courses: dict[str, list[Course]] = {"sync": [], "async": []}
    for seed in range(seeds):
        for pipeline, own in courses.items():
            course = await run_once(make_config(folder, pipeline, seed, updates=updates))
            own.append(course)
            say(
                f"{pipeline}, seed {seed}: a step takes {course.typical('step_s'):.2f} s, "
                f"reward {course.rewards[0]:.3f} to {course.reward_last_third:.3f}"
            )
    if not ci:
        draw(courses, FIGURE)
    return speeds(courses) | rewards(courses)


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
