"""Training for an hour while everything fails that can: how much is learned all the same, and what leaks.

The vaults of pipeline.py, asynchronously, through the commands `mcprl train` and `mcprl resume`: first for as long
without a fault, then with faults at seeded times. An hour has, and any other length in proportion, but each once:

  trainer killed      1   kill -9, and `mcprl resume`
  SIGTERM             1   and `mcprl resume`
  disk full           1   no file can grow any more; the run ends by itself, and `mcprl resume` finds it free again
  vLLM killed         2   kill -9; not with --ci, which samples with transformers
  tool server killed 60   kill -9 of one of its two processes
  call hangs         90   a call is never answered; its deadline is 2 s
  garbage            30   what is no message comes in the place of an answer

A start of the trainer takes 20 to 40 s here, one of vLLM 20 s: the three of the one and the two of the other are about
4% of an hour, so that 95% of the progress can just be kept. In a short soak starts, and stopping in order, are most of
the time: there progress is told and not judged.

  minutes                  of each of the two courses, from the end of its first step
  updates_calm, updates    steps done in that time, each counted once
  progress                 the second divided by the first; its bar of 0.95 holds from 60 minutes on
  progress_outside_starts  updates divided by those that the calm course would have made in the time in which no trainer
                           was being started
  start_s                  that time
  faults                   what was done
  wrong_ends               processes that ended otherwise than they had to: 75 after SIGTERM, 3 with a full disk
  rss_slope_mb_per_min     growth of the trainer's memory over its longest life, by least squares, without its first
                           minutes; judged from 10 minutes on
  leaked_descriptors       more files open at the end of a step, late in that life than early
  episodes, finished_lost, used_twice, played_again, too_stale
                           of the course with faults: all on record; durable ones that are gone; on record twice; played
                           again after they were durable; learned from by weights more than 1 version ahead
  orphans                  processes that outlived their run

    python bench/soak.py [--ci] [--minutes N] [--figure FILE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from pipelining.policy import make_policy
from servers.harness import run_bench, say
from soaking.course import Course
from soaking.drawing import draw
from soaking.faults import schedule
from soaking.findings import episodes_found, leaked_descriptors, longest_life, rss_slope_mb_per_min, settled
from soaking.soak_runs import make_config

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "assets" / "soak.svg"
SEED = 17
MINUTES, CI_MINUTES = 60.0, 1.0
SETTLED_MINUTES = 10.0
BARS: dict[str, tuple[str, float]] = {
    "wrong_ends": ("==", 0),
    "leaked_descriptors": ("<=", 0),
    "finished_lost": ("==", 0),
    "used_twice": ("==", 0),
    "played_again": ("==", 0),
    "too_stale": ("==", 0),
    "orphans": ("==", 0),
}


def print_table(course: Course) -> None:
    for kind, number in sorted(course.counts().items()):
        say(f"  {kind:<20} {number:>4}")


def own_options() -> tuple[float | None, Path | None]:
    """Length and figure, taken out of the arguments that every bench has."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--figure", type=Path)
    chosen, sys.argv[1:] = parser.parse_known_args()
    return chosen.minutes, chosen.figure


async def measure(ci: bool, folder: Path, minutes: float, figure: Path | None) -> dict[str, Any]:
    torch.set_num_threads(1)
    engine = "transformers" if ci else "vllm"
    configs = {name: make_config(folder, name, engine=engine) for name in ("calm", "soaked")}
    (folder / "policy").mkdir()
    await make_policy(folder / "policy", configs["calm"])
    say("the policy knows how calls are written")
    calm, soaked = (Course(folder, config, seed=SEED) for config in configs.values())
    await calm.train(minutes * 60)
    await soaked.train(minutes * 60, schedule(minutes * 60, seed=SEED, with_vllm=not ci))
    print_table(soaked)
    if figure is not None:
        draw(calm, soaked, figure)
    life = settled(longest_life(soaked))
    working_share = 1 - soaked.start_s / soaked.seconds
    return {
        "minutes": minutes,
        "engine": engine,
        "updates_calm": calm.updates,
        "updates": soaked.updates,
        "progress": round(soaked.updates / calm.updates, 3),
        "progress_outside_starts": round(soaked.updates / calm.updates / working_share, 3),
        "start_s": round(soaked.start_s, 1),
        "faults": dict(soaked.counts()),
        "wrong_ends": len(calm.wrong_ends) + len(soaked.wrong_ends),
        "life_min": round((life[-1].at - life[0].at) / 60, 2),
        "rss_slope_mb_per_min": round(rss_slope_mb_per_min(life), 3),
        "leaked_descriptors": leaked_descriptors(life),
        **episodes_found(soaked),
        "orphans": calm.orphans + soaked.orphans,
    }


def main() -> int:
    minutes, figure = own_options()
    ci = "--ci" in sys.argv
    length = minutes or (CI_MINUTES if ci else MINUTES)
    speed: dict[str, tuple[str, float]] = {}
    if length >= MINUTES:
        speed["progress"] = (">=", 0.95)
    if length >= SETTLED_MINUTES:
        speed["rss_slope_mb_per_min"] = ("<=", 1.0)
    figure = figure or (FIGURE if length >= MINUTES else None)
    return run_bench(__doc__, lambda ci, folder: measure(ci, folder, length, figure), BARS, speed=speed)


if __name__ == "__main__":
    sys.exit(main())
