"""Whether reward rises through SkyRL's server: `mcprl train recipes/hello-skyrl.yaml`, as a person starts it.

The server with its JAX backend and both MCP servers are real. All figures come from the runs' metrics.jsonl.

  updates                   optimiser updates made, one entry a seed
  reward_first, reward_last mean reward of the first three steps and of the last five, one entry a seed
  step_s                    median seconds of a step, one entry a seed; the first ones compile and are slower
  minutes                   of each run, from the command to its end
  engine_losses             how often a server was lost and set up again, one entry a seed; nothing is killed here
  least_rise                the least of reward_last − reward_first over the seeds

Full size: seeds 0, 1 and 2. `--ci`: seed 0 only. `--plot` draws docs/assets/hello-skyrl.svg anew.

    python bench/skyrl.py [--ci] [--plot]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from servers.harness import say

ROOT = Path(__file__).resolve().parent.parent
FIGURE = ROOT / "docs" / "assets" / "hello-skyrl.svg"
FULL_SEEDS, CI_SEEDS = (0, 1, 2), (0,)
FIRST_STEPS, LAST_STEPS = 3, 5
LEAST_RISE = 0.3
DEADLINE_S = 3600
COLOURS, INK, PALE = ("#0f766e", "#b45309", "#4338ca"), "#334155", "#cbd5e1"


@dataclass(frozen=True, slots=True)
class Course:
    """What one run says, step by step: Course(0, 3.1, 0, [{"step": 0, "reward": 0.2, "step_s": 41.0}, …])"""

    seed: int
    minutes: float
    engine_losses: int
    steps: Sequence[dict[str, float]]

    @property
    def rewards(self) -> list[float]:
        return [step["reward"] for step in self.steps]

    @property
    def first(self) -> float:
        return fmean(self.rewards[:FIRST_STEPS])

    @property
    def last(self) -> float:
        return fmean(self.rewards[-LAST_STEPS:])


def train(seed: int, outputs: Path) -> tuple[Course, dict[str, Any]]:
    """One run from its command to its end, and its summary."""
    command = [sys.executable, "-m", "mcprl", "train", "recipes/hello-skyrl.yaml"]
    command += ["--set", f"seed={seed}", "--set", f"name=seed-{seed}", "--set", f"training.outputs={outputs}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the server of mcprl is
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"seed {seed} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    minutes = (time.monotonic() - started) / 60
    run = outputs / f"seed-{seed}"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = done.stdout.count("restoring the engine at version")
    return Course(seed, minutes, losses, steps), json.loads((run / "summary.json").read_text())


def draw(courses: Sequence[Course], file: Path) -> None:
    """Reward by updates, a line a seed."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = {"font.size": 10, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with rc_context({**style, "axes.edgecolor": PALE, "svg.fonttype": "path", "svg.hashsalt": "hello-skyrl"}):
        figure = Figure(figsize=(6.5, 3.2), layout="constrained", facecolor="white")
        axes: Any = figure.subplots()
        for course, colour in zip(courses, COLOURS, strict=False):
            places = range(1, len(course.rewards) + 1)
            axes.plot(places, course.rewards, color=colour, linewidth=1.8, label=f"seed {course.seed}")
        axes.set_title("Reward by updates, through SkyRL's server", loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("update")
        axes.set_ylim(0.0, 1.02)
        axes.legend(loc="lower right", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=PALE, linewidth=0.5)
        axes.set_axisbelow(True)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    parser.add_argument("--plot", action="store_true", help=f"draw {FIGURE.relative_to(ROOT)} anew")
    arguments = parser.parse_args()
    courses: list[Course] = []
    updates: list[int] = []
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        for seed in CI_SEEDS if arguments.ci else FULL_SEEDS:
            course, summary = train(seed, Path(folder))
            courses.append(course)
            updates.append(summary["updates"])
            say(f"seed {seed}: reward {course.first:.3f} to {course.last:.3f} in {course.minutes:.1f} minutes")
    if arguments.plot:
        draw(courses, FIGURE)
    least_rise = round(min(course.last - course.first for course in courses), 3)
    figures = {
        "updates": updates,
        "reward_first": [round(course.first, 3) for course in courses],
        "reward_last": [round(course.last, 3) for course in courses],
        "step_s": [round(median(step["step_s"] for step in course.steps), 2) for course in courses],
        "minutes": [round(course.minutes, 1) for course in courses],
        "engine_losses": [course.engine_losses for course in courses],
        "least_rise": least_rise,
    }
    print(json.dumps(figures), flush=True)
    return 0 if least_rise >= LEAST_RISE else 1


if __name__ == "__main__":
    sys.exit(main())
