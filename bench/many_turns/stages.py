"""The stages of an arm of bench/multi_turn.py with one seed: SFT, RL from its adapter, and SFT for the whole budget."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from many_turns.held_out import evaluate
from many_turns.spending import (
    ROOT,
    keep_adapters,
    mcprl_command,
    read_lines,
    read_spending,
    run_watched,
    saved_steps,
)
from mcprl.recipe import load_recipe
from servers.harness import say

__all__ = ["RESULTS", "STAGES", "Arm", "evaluate_untrained", "run_arm"]

RESULTS = ROOT / "bench" / "results" / "multi_turn"
STAGES = ("sft", "rl", "long")
POINTS = 4
"""RL and the long SFT are evaluated after each quarter."""
KEPT_METRICS = (
    *("step", "reward", "success_rate", "valid_call_rate", "calls_injected", "groups_without_variance", "kl"),
    *("entropy", "ratio_mean", "grad_norm", "imitation_loss", "validation_loss", "sampled_tokens", "episodes"),
    *("collect_s", "update_s", "step_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What is run, and what is changed of the recipe: `settings` for all, `sft` and `rl` for one of them.

    `start` names an arm whose SFT adapter RL starts from, instead of making one. SFT imitates the solutions of the
    first `demonstrations` training tasks; None: of all.
    """

    name: str
    recipe: Path
    settings: tuple[str, ...] = ()
    sft: tuple[str, ...] = ()
    rl: tuple[str, ...] = ()
    start: str | None = None
    demonstrations: int | None = None
    episodes: int = 1
    sample: int | None = None
    conditions: tuple[str, ...] = ("plain", "errors")

    def asked(self) -> dict[str, object]:
        """Everything that the results depend on, as JSON."""
        changed = {name: list(getattr(self, name)) for name in ("settings", "sft", "rl")}
        numbers = {name: getattr(self, name) for name in ("start", "demonstrations", "episodes", "sample")}
        return {"recipe": str(self.recipe.relative_to(ROOT)), **changed, **numbers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an arm with one seed works, and where its results are kept."""

    arm: Arm
    seed: int
    outputs: Path
    results: Path

    @property
    def name(self) -> str:
        return f"{self.arm.name}-{self.seed}"

    def kept(self, stage: str, arm: str | None = None) -> Path:
        """The folder of the adapters of a stage, by step."""
        return self.outputs / "adapters" / f"{arm or self.arm.name}-{self.seed}-{stage}"


def run_arm(arm: Arm, seed: int, outputs: Path, stages: Sequence[str]) -> None:
    """Run the stages that are missing. What is finished is not repeated, and what was interrupted is resumed."""
    place = Place(arm=arm, seed=seed, outputs=outputs, results=RESULTS / f"{arm.name}-{seed}")
    _refuse_other_options(place.results / "options.json", arm)
    if "sft" in stages and arm.start is None:
        steps = _sft_steps(arm)
        _sft(place, "sft", steps, marks=(steps,))
    if "rl" in stages:
        _rl(place)
    if "long" in stages:
        steps = _affordable_steps(place)
        _sft(place, "long", steps, marks=_quarters(steps))


def evaluate_untrained(arm: Arm, outputs: Path) -> None:
    """The model as it comes."""
    for condition in arm.conditions:
        result = RESULTS / "untrained" / f"{condition}.json"
        _evaluate(arm, None, result, outputs / "evaluations" / f"untrained-{condition}", condition)


def _refuse_other_options(file: Path, arm: Arm) -> None:
    if file.exists() and json.loads(file.read_text()) != arm.asked():
        raise SystemExit(f"{file.parent} was measured with other options: {file.read_text()}\nName the arm otherwise.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(arm.asked(), indent=1) + "\n")


def _sft(place: Place, stage: str, steps: int, marks: Sequence[int]) -> None:
    # Validation episodes would cost a part of the budget, and are measured afterwards.
    settings = [*place.arm.sft, f"sft.steps={steps}", "tasks.validation=null"]
    if place.arm.demonstrations is not None:
        settings.append(f"tasks.train={_first_tasks(place)}")
    _train(place, "sft", stage, settings, marks)


def _rl(place: Place) -> None:
    start = place.kept("sft", place.arm.start)
    adapters = sorted(start.glob("[0-9]*"), key=lambda path: int(path.name))
    if not adapters:
        raise SystemExit(f"{start} has no adapter: run the stage sft first")
    settings = [f"model.adapter={adapters[-1]}", *place.arm.rl]
    config = load_recipe(place.arm.recipe, [*place.arm.settings, *place.arm.rl])
    _train(place, "train", "rl", settings, _quarters(config.training.steps), adapters[-1])


def _train(
    place: Place, command: str, stage: str, settings: Sequence[str], marks: Sequence[int], start: Path | None = None
) -> None:
    """Train, or resume, and evaluate the adapter after each step of `marks`."""
    name = f"{place.name}-{stage}"
    folder = name if command == "train" or name.endswith("-sft") else f"{name}-sft"  # as `mcprl sft` names it
    run = place.outputs / "runs" / folder
    spending, rows = place.results / f"spending-{stage}.jsonl", run / "metrics.jsonl"
    if not (run / "adapter").exists():
        line = mcprl_command("resume", run)
        if not (run / "config.yaml").exists():
            own = [f"name={name}", f"seed={place.seed}", f"training.outputs={run.parent}"]
            words = [word for each in (*place.arm.settings, *settings, *own) for word in ("--set", each)]
            line = mcprl_command(command, place.arm.recipe, *words)
        run_watched(line, rows, spending, keep_adapters(run, place.kept(stage), marks, start), saved=saved_steps(run))
    steps = read_lines(rows)
    if len(steps) < marks[-1]:  # the validation loss had stopped falling: this adapter is that of the lowest
        marks = [*(mark for mark in marks if mark < len(steps)), len(steps)]
        shutil.copytree(run / "adapter", place.kept(stage) / str(len(steps)), dirs_exist_ok=True)
    kept = [{key: row[key] for key in KEPT_METRICS if key in row} for row in steps]
    (place.results / f"metrics-{stage}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    for mark in marks:
        if not (place.kept(stage) / str(mark)).exists():
            raise SystemExit(f"{run} went on while nobody kept its adapter of step {mark}: delete it and start again")
        for condition in place.arm.conditions:
            result = place.results / f"{condition}-{stage}-{mark:03d}.json"
            out = place.outputs / "evaluations" / f"{name}-{mark}-{condition}"
            _evaluate(place.arm, place.kept(stage) / str(mark), result, out, condition, seed=place.seed)


def _evaluate(arm: Arm, adapter: Path | None, result: Path, out: Path, condition: str, seed: int = 0) -> None:
    settings = (*arm.settings, f"seed={seed}")
    sizes = {"episodes": arm.episodes, "sample": arm.sample}
    evaluate(arm.recipe, adapter, result, out, condition=condition, settings=settings, **sizes)


def _sft_steps(arm: Arm) -> int:
    sft = load_recipe(arm.recipe, [*arm.settings, *arm.sft]).sft
    if sft is None:
        raise SystemExit(f"{arm.recipe} has no section sft")
    return sft.steps


def _affordable_steps(place: Place) -> int:
    """How many steps of SFT cost as many processor seconds as SFT and RL together, a start included."""
    start = RESULTS / f"{place.arm.start or place.arm.name}-{place.seed}"
    sft, rl = read_spending(start / "spending-sft.jsonl"), read_spending(place.results / "spending-rl.jsonl")
    if len(sft) < 2 or not rl:
        raise SystemExit(f"the stages sft and rl of {place.name} come first: they are the budget of the long SFT")
    per_step = (sft[-1].cpu_s - sft[0].cpu_s) / (sft[-1].steps - sft[0].steps)
    started = sft[0].cpu_s - per_step * sft[0].steps
    steps = max(sft[-1].steps, round((sft[-1].cpu_s + rl[-1].cpu_s - started) / per_step))
    say(f"{place.name}: the whole budget is {sft[-1].cpu_s + rl[-1].cpu_s:.0f} CPU s, {steps} steps of SFT")
    return steps


def _quarters(steps: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(steps * point / POINTS)) for point in range(1, POINTS + 1)}))


def _first_tasks(place: Place) -> Path:
    """A file with the first training tasks. In the file of the recipe they are in random order."""
    tasks = load_recipe(place.arm.recipe, place.arm.settings).tasks.train.read_text().splitlines(keepends=True)
    file = place.outputs / f"{place.name}-demonstrations.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(tasks[: place.arm.demonstrations]))
    return file
