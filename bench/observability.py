"""What it costs a step to be seen: to journal it, to record it, and to tell trackers of it.

The runs are those of recipes/hello-cpu.yaml, with its two tool servers, SmolLM2-135M and its tasks, and the sampler
`transformers` in the place of vLLM. With trackers, two are told at once: W&B offline and TensorBoard. Weave is left
out, as it has no files to write to; what it costs the run is what the others do, since their libraries all work in
processes of their own.

Meters sit around all that writes the run's files (the episodes' journal with its fsync, trajectories, tokens, timeline,
verdicts, metrics, figures of tools) and all that tells trackers (in the event loop, and in the thread of each). What
runs beside the sampler is counted as if the step had waited for it. The first step is not timed: libraries are loaded.

  tracking_share, journal_share     seconds by the clock, as a share of the step; median over the steps
  worst                             the two together
  tracking_cpu_share, journal_cpu_share    the same of processor time, which other work on the machine does not change
  tracking_ms, journal_ms           a step, by the clock
  tracking_cpu_ms, journal_cpu_ms   a step, of the processor
  step_s, episodes                  of a step with trackers
  step_s_without                    of a step without, in runs that take turns with the others; None with --ci
  dropped                           reports that a tracker was too slow for

A checkpoint is no part of this. Full size: 16 episodes a step as in the recipe, two runs of 4 steps with and two
without trackers, in turn. `--ci`: one run with trackers, and steps of two episodes of one turn, so that what a step
costs whatever its size weighs more than it does in any run worth the name; without the recipe's preamble, too.

    python bench/observability.py [--ci]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from mcprl.config import RunConfig
from mcprl.recipe import load_recipe
from observing.meters import StepMeter, run_metered
from servers.harness import run_bench, say

HERE = Path(__file__).resolve().parent
RECIPE = HERE.parent / "recipes" / "hello-cpu.yaml"
FULL = ["training.steps=4"]
SMALL = [
    "training.steps=3",
    "training.tasks_per_step=1",
    "episodes.group_size=2",
    "episodes.max_turns={easy: 1, medium: 1, hard: 1}",
    "tasks.preamble=null",
    "sampling.max_tokens=24",
]
UNTIMED = 1
BARS = {"dropped": ("<=", 0)}
SPEED_BARS = {"worst": ("<=", 0.02)}


def make_config(folder: Path, *, tracked: bool, ci: bool) -> RunConfig:
    settings = ["engine=transformers", f"training.outputs={folder}"]
    settings += ["sampling.constrain=off", "algorithm.warm_start.weight=0"]  # neither is what is timed here
    settings += SMALL if ci else FULL
    if tracked:
        settings += ["tracking.wandb.project=bench", "tracking.tensorboard=true"]
    return load_recipe(RECIPE, settings)


def figures(steps: list[StepMeter], without: list[StepMeter]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("tracking", "journal"):
        spent = [(step.tracking if name == "tracking" else step.journaling, step.whole) for step in steps]
        found[f"{name}_share"] = round(median(own.clock_s / whole.clock_s for own, whole in spent), 5)
        found[f"{name}_cpu_share"] = round(median(own.processor_s / whole.processor_s for own, whole in spent), 5)
        found[f"{name}_ms"] = round(1000 * median(own.clock_s for own, _ in spent), 2)
        found[f"{name}_cpu_ms"] = round(1000 * median(own.processor_s for own, _ in spent), 2)
    found["worst"] = round(found["tracking_share"] + found["journal_share"], 5)
    found["step_s"] = round(median(step.whole.clock_s for step in steps), 3)
    found["step_s_without"] = round(median(step.whole.clock_s for step in without), 3) if without else None
    return found


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    os.environ["WANDB_MODE"] = "offline"
    told: list[StepMeter] = []
    untold: list[StepMeter] = []
    dropped = episodes = 0
    for _ in range(1 if ci else 2):
        if not ci:
            steps, _path = await run_metered(make_config(folder, tracked=False, ci=ci))
            untold += steps[UNTIMED:]
            say(f"without trackers: a step takes {median(step.whole.clock_s for step in untold):.2f} s")
        config = make_config(folder, tracked=True, ci=ci)
        steps, path = await run_metered(config)
        told += steps[UNTIMED:]
        say(f"with trackers: a step takes {median(step.whole.clock_s for step in told):.2f} s")
        outcomes = json.loads((path / "tracking.json").read_text())
        for kind, outcome in outcomes.items():
            say(f"{kind}: {outcome['state']}, {outcome['reports']} reports")
            dropped += outcome["dropped"] + (outcome["state"] != "delivered")
        episodes = config.training.tasks_per_step * config.episodes.group_size
    return {**figures(told, untold), "episodes": episodes, "dropped": dropped}


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
