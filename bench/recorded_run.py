"""docs/guides/from-recorded-conversations.md with a real model: success before fine-tuning, after it, and after RL.

The commands of the guide, in turn, in a folder outside the repository: import, doctor, evaluate, fine-tune, evaluate,
train, evaluate. A command whose results are in the folder is not repeated, and a training that was interrupted is
resumed, so the bench can be stopped and started again.

  rows, proven, train, validation     what the import made
  false_alarms                        findings of the doctor that are neither ok, skipped nor the forecast
  before, after_sft, after_rl         success on the recorded validation tasks, with the ends of its 95% interval
  covered                             share of the policy's calls that were recorded, by evaluation and tool
  sft_steps, sft_loss                 of the fine-tuning; its validation loss at the first and at the last validation
  updates, rl_reward                  of RL; the reward of each update

    python bench/recorded_run.py --out FOLDER [--model FOLDER] [--episodes N] [--sft-steps N] [--steps N]
                                 [--set KEY=VALUE …] [--set-sft KEY=VALUE …] [FILE …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcprl.evaluation.results import read_evaluation
from servers.harness import say

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
MODEL = ROOT / ".cache" / "models" / "smollm2-135m"
PROJECT = Path("imported") / "quotes"
RECIPE = PROJECT / "recipe.yaml"
SFT, RL = Path("outputs") / "quotes-sft", Path("outputs") / "quotes"
MILD = {"forecast"}  # a CPU takes long


def run(folder: Path, *arguments: object) -> str:
    """Run a command of mcprl in the folder, as the guide does."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # servers.json starts `mcprl`
    words = [str(argument) for argument in arguments]
    say(" ".join(words))
    command = [sys.executable, "-m", "mcprl", *words]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def evaluate(folder: Path, name: str, *options: object) -> None:
    if not (folder / "outputs" / name / "results.json").exists():
        run(folder, "eval", RECIPE, "--out", f"outputs/{name}", *options)


def teach(folder: Path, command: str, outputs: Path, *options: object) -> None:
    """Start a training, or resume it if it was interrupted."""
    if (folder / outputs / "adapter").exists():
        return
    if (folder / outputs / "config.yaml").exists():
        run(folder, "resume", outputs)
    else:
        run(folder, command, RECIPE, *options)


def as_options(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def follow_the_guide(folder: Path, arguments: argparse.Namespace) -> None:
    settings = as_options(arguments.set)
    if not (folder / RECIPE).exists():
        run(folder, "tasks", "import", *arguments.files, "--out", PROJECT, "--model", arguments.model)
    if not (folder / "doctor.json").exists():
        found = run(folder, "doctor", RECIPE, "--fast", "--json")
        (folder / "doctor.json").write_text(found)
    played = ("--episodes", arguments.episodes, *settings)
    evaluate(folder, "before", *played)
    teach(folder, "sft", SFT, "--set", f"sft.steps={arguments.sft_steps}", *settings, *as_options(arguments.set_sft))
    evaluate(folder, "after-sft", *played, "--adapter", SFT / "adapter", "--against", "outputs/before")
    adapter = f"model.adapter={(folder / SFT / 'adapter').resolve()}"
    teach(folder, "train", RL, "--set", adapter, "--set", f"training.steps={arguments.steps}", *settings)
    evaluate(folder, "after-rl", *played, "--adapter", RL / "adapter", "--against", "outputs/after-sft")


def steps_of(folder: Path, outputs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / outputs / "metrics.jsonl").read_text().splitlines()]


def read_figures(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / PROJECT / "report.json").read_text())
    findings = json.loads((folder / "doctor.json").read_text())["findings"]
    figures: dict[str, Any] = {name: report[name] for name in ("rows", "proven", "train", "validation")}
    figures["false_alarms"] = [
        each["check"] for each in findings if each["severity"] not in ("ok", "skipped") and each["check"] not in MILD
    ]
    figures["covered"] = {}
    for name in ("before", "after_sft", "after_rl"):
        found = read_evaluation(folder / "outputs" / name.replace("_", "-")).figures
        figures[name] = [found.success.value, found.success.low, found.success.high]
        figures["covered"][name] = {
            tool: [result.covered, result.calls] for tool, result in found.tools.items() if result.covered is not None
        }
    imitated, trained = steps_of(folder, SFT), steps_of(folder, RL)
    losses = [step["validation_loss"] for step in imitated if "validation_loss" in step]
    figures["sft_steps"], figures["sft_loss"] = len(imitated), [*losses[:1], *losses[-1:]]
    figures["updates"], figures["rl_reward"] = len(trained), [step["reward"] for step in trained]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(DATA.glob("*.json")))
    parser.add_argument("--out", type=Path, required=True, help="a folder outside the repository")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--episodes", type=int, default=2, help="per validation task")
    parser.add_argument("--sft-steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5, help="updates of RL")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all commands")
    parser.add_argument("--set-sft", action="append", default=[], metavar="KEY=VALUE", help="for the fine-tuning alone")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    follow_the_guide(arguments.out, arguments)
    print(json.dumps(read_figures(arguments.out)))


if __name__ == "__main__":
    main()
