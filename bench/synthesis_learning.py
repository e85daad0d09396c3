"""Do synthesized tasks teach? The hand-written validation tasks, before and after training on tasks that mcprl made.

SmolLM2-135M with recipes/finance-cpu.yaml: `mcprl tasks synthesize` on the four servers of the offline market,
`mcprl sft` on the solutions of training tasks of at most --longest calls, then `mcprl train` from that adapter without
a warm start. The second arm spends as many steps on the hand-written training tasks. No entity of a validation task is
in either. The start is the untrained model's evaluation in docs/results.

  start, ARM_sft, ARM_rl    success on recipes/finance/validation.jsonl with the ends of its 95% interval, over seeds
  ARM_tasks                 number of training tasks
  ARM_steps                 steps of RL that were made, by seed

    python bench/synthesis_learning.py --out FOLDER [--arms synthesized written] [--seeds 1 2 3] [--count N]
                                       [--longest N] [--sft-steps N] [--steps N] [--set KEY=VALUE …]

The success of each task is stored in bench/results/synthesis_learning. A command whose results are there, or in FOLDER,
is not repeated, and a training that was interrupted is resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from mcprl.evaluation.results import read_evaluation
from mcprl.evaluation.statistics import share_interval
from servers.harness import say

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "synthesis_learning"
RECIPE = ROOT / "recipes" / "finance-cpu.yaml"
START = ROOT / "docs" / "results" / "untrained" / "validation.json"
HELD = ROOT / "recipes" / "finance" / "validation.jsonl"
MARKET = ("fmp", "polygon", "tavily", "slack")
ARMS = ("synthesized", "written")


def mcprl(folder: Path, *words: object) -> None:
    said = [str(word) for word in words]
    say(" ".join(said))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the market's servers are `mcprl serve`
    command = [sys.executable, "-m", "mcprl", *said]
    subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, stdout=sys.stderr, check=True)


def make_tasks(folder: Path, count: int, longest: int) -> None:
    """Write FOLDER/synthesized.jsonl and written.jsonl: tasks whose values are in no validation question."""
    if not (folder / "tasks" / "train.jsonl").exists():
        servers = {name: {"command": "mcprl", "args": ["serve", name, "--world", "7"]} for name in MARKET}
        (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        words = ("--servers", "servers.json", "--out", "tasks", "--count", count, "--distractors", 1, "--yes")
        mcprl(folder, "tasks", "synthesize", *words)
    held = " ".join(json.loads(line)["prompt"] for line in HELD.read_text().splitlines())
    files = {"synthesized": folder / "tasks" / "train.jsonl", "written": HELD.with_name("train.jsonl")}
    for arm, file in files.items():
        kept: list[str] = []
        for line in file.read_text().splitlines():
            task = json.loads(line)
            calls = task["solution"]["calls"]
            values = re.findall(r"[A-Z]{3,}", json.dumps([call["arguments"] for call in calls]))
            if len(calls) <= longest and not any(re.search(rf"\b{value}\b", held) for value in values):
                kept.append(line)
        (folder / f"{arm}.jsonl").write_text("".join(f"{line}\n" for line in kept))


def teach(folder: Path, command: str, run: Path, settings: list[str]) -> None:
    """Start a training, or resume it if it was interrupted."""
    if (run / "config.yaml").exists():
        mcprl(folder, "resume", run)
    else:
        mcprl(folder, command, RECIPE, *settings)


def evaluate(folder: Path, name: str, adapter: Path) -> None:
    """Store the success of each validation task."""
    out = folder / "evaluations" / name
    mcprl(folder, "eval", RECIPE, "--out", out, "--adapter", adapter)
    solved = {task.id: task.solved / task.episodes for task in read_evaluation(out).tasks}
    (RESULTS / f"{name}.json").write_text(json.dumps(solved, indent=1) + "\n")


def run_arm(folder: Path, arm: str, seed: int, options: argparse.Namespace) -> None:
    name, outputs = f"{arm}-{seed}", folder / "outputs"
    sft, rl = outputs / f"{name}-sft", outputs / name
    # Results are longer than those of the recipe's tasks: without checkpointing, a step would take 16 GB.
    small = ["learner.checkpointing=true", "learner.tokens_per_pack=2048"]
    given = [*small, f"name={name}", f"seed={seed}", f"tasks.train={folder / arm}.jsonl", f"training.outputs={outputs}"]
    stages = {
        "sft": (sft, [f"sft.steps={options.sft_steps}", "sft.learning_rate=1e-3", "tasks.validation=null"]),
        "train": (rl, [f"training.steps={options.steps}", "algorithm.warm_start.weight=0"]),
    }
    stages["train"][1].append(f"model.adapter={sft / 'adapter'}")
    for command, (run, more) in stages.items():
        kept = f"{name}-{'sft' if command == 'sft' else 'rl'}"
        if not (RESULTS / f"{kept}.json").exists():
            if not (run / "adapter").exists():
                words = [word for each in (*given, *more, *options.set) for word in ("--set", each)]
                teach(folder, command, run, words)
            evaluate(folder, kept, run / "adapter")
        steps = (run / "metrics.jsonl").read_text().splitlines() if run.exists() else []
        if command == "train" and steps:
            rows = [{key: json.loads(step)[key] for key in ("step", "reward", "success_rate")} for step in steps]
            (RESULTS / f"{name}-steps.json").write_text(json.dumps(rows, indent=1) + "\n")


def read_figures(folder: Path, seeds: list[int]) -> dict[str, Any]:
    start = {task["id"]: task["solved"] / task["episodes"] for task in json.loads(START.read_text())["tasks"]}
    figures: dict[str, Any] = {"start": _interval([start])}
    for arm in ARMS:
        for stage in ("sft", "rl"):
            files = [RESULTS / f"{arm}-{seed}-{stage}.json" for seed in seeds]
            if found := [json.loads(file.read_text()) for file in files if file.exists()]:
                figures[f"{arm}_{stage}"] = _interval(found)
        figures[f"{arm}_tasks"] = len((folder / f"{arm}.jsonl").read_text().splitlines())
        kept = [RESULTS / f"{arm}-{seed}-steps.json" for seed in seeds]
        figures[f"{arm}_steps"] = [len(json.loads(file.read_text())) for file in kept if file.exists()]
    return figures


def _interval(found: list[dict[str, float]]) -> list[float | None]:
    """Return success and the ends of its interval, over the seeds."""
    means = [fmean(each[task] for each in found) for task in found[0]]
    estimate = share_interval(means, len(means) * len(found))
    return [estimate.value, estimate.low, estimate.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--count", type=int, default=400, help="tasks to synthesize")
    parser.add_argument("--longest", type=int, default=1, help="calls of the longest task to train on")
    parser.add_argument("--sft-steps", type=int, default=16, help="of 16 conversations each")
    parser.add_argument("--steps", type=int, default=12, help="of RL")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all trainings")
    options = parser.parse_args()
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_tasks(folder, options.count, options.longest)
    asked = {name: value for name, value in vars(options).items() if name not in {"out", "arms", "seeds"}}
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / "options.json"
    if kept.exists() and json.loads(kept.read_text()) != asked:
        raise SystemExit(f"{RESULTS} was measured with other options: {kept.read_text()}")
    kept.write_text(json.dumps(asked) + "\n")
    for seed in options.seeds:
        for arm in options.arms:
            run_arm(folder, arm, seed, options)
    print(json.dumps(read_figures(folder, options.seeds)))


if __name__ == "__main__":
    main()
