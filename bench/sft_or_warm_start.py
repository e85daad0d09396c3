"""Which is better before RL, at the same budget: a warm start, or supervised fine-tuning?

SmolLM2-135M on recipes/finance-cpu.yaml, or another recipe with a warm start, as a person starts it. One arm is
`mcprl train` with the recipe's warm start. The other is `mcprl sft` on the same solutions, then `mcprl train` from its
adapter without a warm start, for as many steps as the first arm's processor seconds leave. Both are evaluated on the
validation tasks, which no step saw.

  warm_start_success, sft_success     mean over seeds
  difference, difference_low, difference_high   sft − warm start, paired by task, with its 95% interval
  warm_start_cpu_s, sft_cpu_s         processor seconds of the trainings, servers and sampler included; mean over seeds
  rl_steps                            steps of RL that were left after the fine-tuning, by seed

    python bench/sft_or_warm_start.py [--recipe FILE] [--seeds 1 2 3] [--steps N] [--sft-steps N] [--sft-rate RATE]
                                      [--episodes N] [--set KEY=VALUE …] [--out FOLDER]

With --out, the results of each seed are kept in the folder as soon as they are there, and a seed with results is not
measured again, so that the bench can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import mcprl
from servers.harness import say

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "finance-cpu.yaml"
NORMAL = 1.96


def spent_s() -> float:
    """Processor seconds of all processes that this one has started and waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: str, recipe: Path, settings: list[str]) -> float:
    """Run a command on a recipe. Returns its processor seconds."""
    before = spent_s()
    given = [word for setting in settings for word in ("--set", setting)]
    subprocess.run([sys.executable, "-m", "mcprl", command, str(recipe), *given], check=True, stdout=sys.stderr)
    return spent_s() - before


def solved(recipe: Path, adapter: Path, episodes: int, settings: list[str]) -> dict[str, float]:
    """The share of solved episodes of each validation task."""
    evaluation = mcprl.evaluate(recipe, adapter=adapter, episodes=episodes, settings=settings)
    return {task.id: task.solved / task.episodes for task in evaluation.tasks}


def compare(seed: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    recipe: Path = arguments.recipe
    name = mcprl.load_recipe(recipe).name
    common = [f"seed={seed}", *arguments.set]
    warm, fine = folder / f"warm-{seed}", folder / f"sft-{seed}"
    of_warm = run("train", recipe, [*common, f"training.steps={arguments.steps}", f"training.outputs={warm}"])
    say(f"seed {seed}: warm start and {arguments.steps} steps of RL took {of_warm:.0f} CPU s")
    # Validations would cost a part of the budget that the warm start does not pay.
    sft = [f"sft.steps={arguments.sft_steps}"]
    of_sft = run(
        "sft",
        recipe,
        [*common, *sft, f"sft.learning_rate={arguments.sft_rate}", "tasks.validation=null", f"training.outputs={fine}"],
    )
    steps = max(1, round((of_warm - of_sft) / (of_warm / arguments.steps)))
    say(f"seed {seed}: fine-tuning took {of_sft:.0f} CPU s; {steps} steps of RL are left")
    adapter = fine / f"{name}-sft" / "adapter"
    rl = ["algorithm.warm_start.weight=0", f"model.adapter={adapter}", f"training.steps={steps}"]
    of_sft += run("train", recipe, [*common, *rl, f"training.outputs={fine}"])
    both = [solved(recipe, arm / name / "adapter", arguments.episodes, common) for arm in (warm, fine)]
    return {"warm": both[0], "sft": both[1], "warm_cpu_s": of_warm, "sft_cpu_s": of_sft, "rl_steps": steps}


def compared(seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The results of a seed: those of an earlier call with the same folder, or measured now."""
    kept: Path | None = arguments.out and arguments.out / f"seed-{seed}.json"
    asked = {key: value for key, value in vars(arguments).items() if key not in ("seeds", "out")}
    asked["recipe"] = arguments.recipe.name
    if kept is not None and kept.exists():
        found = json.loads(kept.read_text())
        if found["asked"] != asked:
            raise SystemExit(f"{kept} was measured with other options: {found['asked']}")
        return found["found"]
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as name:
        found = compare(seed, Path(name), arguments)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"asked": asked, "found": found}, indent=1) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=24, help="of RL with the warm start")
    parser.add_argument("--sft-steps", type=int, default=16, help="of the fine-tuning, 16 conversations each")
    parser.add_argument("--sft-rate", type=float, default=1e-3, help="learning rate of the fine-tuning")
    parser.add_argument("--episodes", type=int, default=2, help="per validation task")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for both arms")
    parser.add_argument("--out", type=Path, help="where the results of each seed are kept")
    arguments = parser.parse_args()
    found = [compared(seed, arguments) for seed in arguments.seeds]
    # A task's difference is its mean over seeds, so that tasks are independent.
    tasks = found[0]["warm"]
    differences = [fmean(of["sft"][task] - of["warm"][task] for of in found) for task in tasks]
    error = NORMAL * stdev(differences) / len(differences) ** 0.5
    mean = fmean(differences)
    figures = {
        "warm_start_success": fmean(share for of in found for share in of["warm"].values()),
        "sft_success": fmean(share for of in found for share in of["sft"].values()),
        "difference": mean,
        "difference_low": mean - error,
        "difference_high": mean + error,
        "warm_start_cpu_s": fmean(of["warm_cpu_s"] for of in found),
        "sft_cpu_s": fmean(of["sft_cpu_s"] for of in found),
        "rl_steps": [of["rl_steps"] for of in found],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
