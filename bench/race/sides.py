"""Running a side of the race: its training, with what it spends, and the evaluation of its adapters."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from many_turns.held_out import evaluate
from many_turns.spending import ROOT, keep_adapters, mcprl_command, run_watched, saved_steps
from mcprl.recipe import load_recipe
from servers.harness import say

__all__ = ["RESULTS", "SIDES", "Race", "make_start", "run_side"]

RESULTS = ROOT / "bench" / "results" / "race"
SIDES = {
    "ours": "mcprl",
    "shipped": "TRL as shipped",
    "patched": "TRL, head on completions only",
    "vllm": "TRL with vLLM, head on completions only",
}
TRL_SIDE = ROOT / "bench" / "race" / "trl_side.py"
PLAIN_SFT = ("sampling.constrain=off", "sampling.stop=[]")
"""The adapter at the start ends its turns itself and was taught without a grammar, so that it suits all sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """What all sides have in common, and what is changed for one: `ours` of the recipe, `trl` of GRPOConfig."""

    name: str
    recipe: Path
    outputs: Path
    start: Path
    steps: int
    every: int
    settings: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    trl: Mapping[str, Any]
    max_completion_tokens: int = 512
    rows: int = 2
    peers_python: Path
    conditions: tuple[str, ...] = ("plain", "free")
    evaluations: Mapping[str, Any]

    def asked(self) -> dict[str, object]:
        names = ("name", "steps", "every", "max_completion_tokens", "rows")
        given = {name: getattr(self, name) for name in names}
        given |= {"settings": list(self.settings), "ours": list(self.ours), "trl": dict(self.trl)}
        places = {"recipe": os.path.relpath(self.recipe, ROOT), "start": os.path.relpath(self.start, ROOT)}
        return given | places | {"evaluations": dict(self.evaluations)}


def make_start(recipe: Path, outputs: Path, settings: tuple[str, ...]) -> Path:
    """The adapter that all sides start from: `mcprl sft` on the recipe's solutions."""
    run = outputs / "start-sft"
    if not (run / "adapter").exists():
        words = [*settings, *PLAIN_SFT, "tasks.validation=null", "name=start", f"training.outputs={outputs}"]
        line = mcprl_command("sft", recipe, *(word for each in words for word in ("--set", each)))
        if (run / "config.yaml").exists():
            line = mcprl_command("resume", run)
        run_watched(line, run / "metrics.jsonl", outputs / "spending-start.jsonl", saved=saved_steps(run))
    return run / "adapter"


def run_side(race: Race, side: str, seed: int) -> None:
    """Train, or resume, then evaluate each adapter that was kept. What is finished is not repeated."""
    name = f"{race.name}-{side}-{seed}"
    results, kept = RESULTS / name, race.outputs / "adapters" / name
    asked = results / "options.json"
    if asked.exists() and json.loads(asked.read_text()) != race.asked():
        raise SystemExit(f"{results} was measured with other options; name this race otherwise by --name")
    results.mkdir(parents=True, exist_ok=True)
    asked.write_text(json.dumps(race.asked(), indent=1) + "\n")
    marks = tuple(range(race.every, race.steps + 1, race.every))
    run = race.outputs / "runs" / name
    if not (run / "adapter").exists():
        train = _train_ours if side == "ours" else _train_trl
        train(race, side, seed, run, kept, marks, results)
    shutil.copy(run / "metrics.jsonl", results / "metrics.jsonl")
    if (run / "log_history.json").exists():
        shutil.copy(run / "log_history.json", results / "log_history.json")
    start = results / "plain-000.json"
    say(f"{name}: evaluations")
    adapters = {0: race.start} | {mark: kept / str(mark) for mark in marks}
    for mark, adapter in adapters.items():
        for condition in race.conditions:
            result = start.with_name(f"{condition}-{mark:03d}.json")
            out = race.outputs / "evaluations" / f"{name}-{mark}-{condition}"
            settings = (*race.settings, f"seed={seed}")
            evaluate(race.recipe, adapter, result, out, condition=condition, settings=settings, **race.evaluations)


def _train_ours(race: Race, side: str, seed: int, run: Path, kept: Path, marks: tuple[int, ...], results: Path) -> None:
    line = mcprl_command("resume", run)
    if not (run / "config.yaml").exists():
        own = [f"name={run.name}", f"seed={seed}", f"training.outputs={run.parent}", f"training.steps={race.steps}"]
        words = [*race.settings, *race.ours, f"model.adapter={race.start}", *own]
        line = mcprl_command("train", race.recipe, *(word for each in words for word in ("--set", each)))
    keep = keep_adapters(run, kept, marks, race.start)
    spending, log = results / "spending.jsonl", results / "log.txt"
    run_watched(line, run / "metrics.jsonl", spending, keep, saved=saved_steps(run), log=log)


def _train_trl(race: Race, side: str, seed: int, run: Path, kept: Path, marks: tuple[int, ...], results: Path) -> None:
    run.mkdir(parents=True, exist_ok=True)
    settings = [*race.settings, f"seed={seed}"]
    updates = load_recipe(race.recipe, settings).algorithm.minibatches
    vllm = {"use_vllm": True, "vllm_mode": "colocate"} if side == "vllm" else {}
    work = {
        "recipe": str(race.recipe),
        "settings": settings,
        "adapter": str(race.start),
        "output": str(run),
        "steps": race.steps,
        "save_every": race.every,
        "rows": race.rows,
        "max_completion_tokens": race.max_completion_tokens,
        "head_on_completions": side != "shipped",
        "grpo_config": vllm | dict(race.trl),
    }
    file = run / "work.json"
    file.write_text(json.dumps(work, indent=1))
    whole = [path.parent.name for path in run.glob("checkpoint-*/trainer_state.json")]
    saved = max((int(name.rpartition("-")[2]) for name in whole), default=0) // updates
    sources = [str(ROOT / "src"), *(str(path) for path in ROOT.glob("packages/*/src"))]
    path = os.pathsep.join((*sources, os.environ.get("PYTHONPATH", "")))
    more = {
        "PYTHONPATH": path,
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_ERROR_REPORTING": "false",
    }
    command = [str(race.peers_python), str(TRL_SIDE), str(file)]
    spending, log = results / "spending.jsonl", results / "log.txt"
    run_watched(command, run / "metrics.jsonl", spending, saved=saved, log=log, more=more)
    for mark in marks:
        target = kept / str(mark)
        shutil.copytree(run / f"checkpoint-{mark * updates}", target, ignore=_only_adapter, dirs_exist_ok=True)
    say(f"{run.name}: {len(marks)} adapters; its output is in {log.relative_to(ROOT)}")


def _only_adapter(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith("adapter_")]
