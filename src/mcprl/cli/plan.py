"""`mcprl plan`: forecasts what a run needs, before it is started."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mcprl.cli.options import Overrides, Recipe
from mcprl.cli.printing import plain_table, printable

if TYPE_CHECKING:
    from mcprl.checks.plan import Figure, Plan
    from mcprl.config import RunConfig

_COUNTS = ("episodes", "turns", "calls", "prompt_tokens", "sampled_tokens", "learned_tokens")
_ASSUME_HELP = (
    "Set a figure that the recipe does not contain, e.g. turns=3. May be repeated. Per episode: turns, prompt_tokens, "
    "turn_tokens, observation_tokens, length_tokens, calls, tool_s; per GPU: sampler_tokens_per_s, "
    "learner_tokens_per_s; for the model: parameters."
)


def command(
    recipe: Recipe,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="Number of GPUs; 0: the model runs on a CPU.")] = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Ray workers; 0: none; default: as in the recipe.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of an earlier run: use its measured speed and episode sizes.")
    ] = None,
    assume: Annotated[list[str] | None, typer.Option("--assume", metavar="FIGURE=NUMBER", help=_ASSUME_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    overrides: Overrides = None,
) -> None:
    """Estimate the time, tokens, calls, money, disk and memory of a run, its bottleneck, and the setting to change.

    Nothing is started. Figures that the recipe does not contain are assumed, and each assumption is listed.
    """
    from mcprl.checks.plan import make_plan
    from mcprl.recipe import load_recipe
    from mcprl.tasks import load_preamble, load_tasks

    chosen = [] if workers is None else [f"workers.count={workers}"]
    config = load_recipe(recipe, [*(overrides or []), *chosen])
    known = {**(_figures_of_run(run) if run is not None else {}), **_given(assume or [])}
    tasks, preamble = load_tasks(config.tasks.train), load_preamble(config.tasks.preamble)
    plan = make_plan(config, tasks, preamble, gpus=gpus, known=known)
    if as_json:
        hardware = {"engine": config.engine, "gpus": gpus, "workers": config.workers.count}
        facts = {"name": config.name, **hardware, "steps": config.training.steps, **asdict(plan)}
        print(json.dumps(facts, indent=2, allow_nan=False))
        return
    Console(highlight=False).print(Group(*_blocks(config, plan, gpus)), crop=False)


def _blocks(config: RunConfig, plan: Plan, gpus: int) -> Iterator[RenderableType]:
    from mcprl.placement import place

    size = "size unknown"
    if plan.model.parameters is not None:
        size = f"{plan.model.parameters / 1e6:,.0f}M parameters ({plan.model.source})"
    units = "1 GPU" if gpus == 1 else f"{gpus or 'no'} GPUs"
    hardware = f"engine {config.engine}, {units}, {config.workers.count or 'no'} workers, {size}"
    yield Text.assemble((printable(config.name), "bold"), f"  {hardware}\n")
    yield _amounts(plan, config.training.steps)
    yield _parts(plan)
    worst = plan.parts[0]
    yield Text.assemble(
        "\n", ("Bottleneck: ", "bold"), f"{printable(worst.name)}. Relevant settings: {worst.setting}.\n"
    )
    yield _figures(plan)
    if config.engine != "skyrl" and gpus:
        placed = place(config, gpus)
        yield Text.assemble(("Placement: ", "bold"), f"{placed.drawn()}\n")
        idle = gpus - len({*placed.sampling, *placed.learner})
        if placed.gpus > gpus or idle:
            what = f"{idle} would be idle" if idle > 0 else f"placement and learner.processes need {placed.gpus}"
            yield Text(f"Warning: {gpus} GPUs, but {what}.", style="yellow")
    for warning in plan.warnings:
        yield Text(f"Warning: {printable(warning)}.", style="yellow")
    yield Text(f"These are estimates. Driver and workers were measured on {plan.machine}: see docs/scaling.md.")


def _amounts(plan: Plan, steps: int) -> Table:
    step, run = plan.step, plan.run
    table = plain_table("", right=("per step", f"{steps:,} steps"))
    table.add_row("time", _duration(step.seconds), _duration(run.seconds))
    table.add_row("  collect + update", f"{_duration(plan.collect_s)} + {_duration(plan.update_s)}")
    for name in _COUNTS:
        table.add_row(name.replace("_", " "), *(f"{getattr(amounts, name):,.0f}" for amounts in (step, run)))
    table.add_row("cost of tools", *(f"{amounts.usd:,.2f} USD" for amounts in (step, run)))
    table.add_row("disk: trajectories", *(decimal(round(amounts.trajectory_bytes)) for amounts in (step, run)))
    if plan.checkpoint_bytes is not None:
        table.add_row("disk: each checkpoint", "", decimal(round(plan.checkpoint_bytes)))
    titles = {"driver": "driver", "workers": "all workers", "learner": "each learner process", "sampler": "sampler"}
    for name, title in titles.items():
        if plan.memory_bytes.get(name):
            table.add_row(f"memory: {title}", "", decimal(round(plan.memory_bytes[name])))
    return table


def _parts(plan: Plan) -> Table:
    table = plain_table("\npart", right=("\nunits", "\nbusy per step", "\nshare"))
    table.add_column("\nrelevant settings", overflow="fold")
    for part in plan.parts:
        share = f"{part.busy_s / plan.step.seconds:.0%}"
        table.add_row(printable(part.name), f"{part.units:,}", _duration(part.busy_s), share, printable(part.setting))
    return table


def _figures(plan: Plan) -> Table:
    table = plain_table("figure", right=("value",))
    table.add_column("source", overflow="fold")
    for name, figure in sorted(plan.figures.items(), key=lambda item: item[1].assumed):
        source = f"assumed: {figure.source}" if figure.assumed else figure.source
        table.add_row(name, f"{figure.value:,.4g}", printable(source))
    return table


def _duration(seconds: float) -> str:
    """Format a duration: 12.3 s, 1:02:03 or 3 days, 4:05:06."""
    return f"{seconds:,.3g} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


def _given(assume: Sequence[str]) -> dict[str, Figure]:
    """Parse the values of --assume: ["turns=3"] gives {"turns": Figure(value=3.0, source="given")}."""
    from mcprl.checks.plan import FIGURES, Figure
    from mcprl.errors import BadValueError, UnknownKeyError, did_you_mean

    given: dict[str, Figure] = {}
    for entry in assume:
        name, _, number = entry.partition("=")
        if name not in FIGURES:
            what = f"--assume {entry}: unknown figure {name!r}{did_you_mean(name, FIGURES)}"
            raise UnknownKeyError(what, fix=f"use one of: {', '.join(FIGURES)}")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not FIGURES[name] <= value < math.inf:
            what = f"--assume {entry}: {number!r} is not a valid value"
            raise BadValueError(what, fix=f"give a number of at least {FIGURES[name]:g}")
        given[name] = Figure(value=value, source="given")
    return given


def _figures_of_run(path: Path) -> dict[str, Figure]:
    """Return the figures measured in a past run: the sizes of its episodes, and the speed of its hardware."""
    from mcprl.checks.plan import Figure
    from mcprl.errors import NoRunError
    from mcprl.runs.past_runs import read_run

    run = read_run(path)
    steps = [step for step in run.metrics if step.get("episodes")]
    if not steps:
        raise NoRunError(f"{path} has no finished step", fix="choose a run with at least one finished step")

    def total(name: str) -> float:
        return sum(float(step.get(name, 0.0)) for step in steps)

    episodes, sampled, context = total("episodes"), total("sampled_tokens"), total("context_tokens")
    turns = sum(step["turns_per_episode"] * step["episodes"] for step in steps) / episodes
    found = {
        "turns": turns,
        "turn_tokens": sampled / episodes / turns,
        "calls": total("calls") / episodes,
        "tool_s": sum(step["tool_latency_mean_s"] * step["calls"] for step in steps) / max(1.0, total("calls")),
        "length_tokens": (sampled + context) / episodes,
    }
    busy_s = sum(step["step_s"] * (1 - step.get("sampler_idle_share", 0.0)) for step in steps)
    learner: Any = run.config.get("learner") or {}
    if busy_s > 0:
        found["sampler_tokens_per_s"] = sampled / busy_s
    if total("update_s") > 0:
        found["learner_tokens_per_s"] = (sampled + context) / total("update_s") / int(learner.get("processes", 1))
    return {name: Figure(value=value, source=f"run {run.name}") for name, value in found.items()}
