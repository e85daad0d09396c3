"""`mcprl plan`: what a run will take, before it is started."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.planning.plan import Known

__all__ = ["command"]

_ASSUME_HELP = (
    "Give a figure that the recipe does not hold, e.g. turns=3. May be repeated. Of an episode: turns, prompt_tokens, "
    "turn_tokens, observation_tokens, length_tokens, calls, tool_s; of a GPU: sampler_tokens_per_s, "
    "learner_tokens_per_s; of the model: parameters."
)


def command(
    recipe: Recipe,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="GPUs; 0: the model runs on a CPU.")] = 0,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Ray workers; 0: none; left out: as the recipe says.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of a run, whose episodes and speed are taken for this one's.")
    ] = None,
    assume: Annotated[list[str] | None, typer.Option("--assume", metavar="FIGURE=NUMBER", help=_ASSUME_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    overrides: Overrides = None,
) -> None:
    """Predict what a run takes: time, tokens, calls, money, bytes; what it waits for, and what changes that.

    Nothing is started. What the recipe does not say is assumed, and each assumption is listed.
    """
    from rich.console import Console

    from mcprl.monitoring.plan_tables import PlanTables
    from mcprl.planning.plan import make_plan, plan_json
    from mcprl.planning.servers import server_names
    from mcprl.recipe import load_recipe
    from mcprl.tasks import load_preamble, load_tasks

    config = load_recipe(recipe, [*(overrides or []), *_worker_overrides(workers)])
    plan = make_plan(
        config,
        load_tasks(config.tasks.train),
        load_preamble(config.tasks.preamble),
        servers=server_names(config.servers),
        gpus=gpus,
        known={**(_known_from(run) if run is not None else {}), **_given(assume or [])},
    )
    if as_json:
        print(json.dumps(plan_json(plan), indent=2, allow_nan=False))
    else:
        Console(highlight=False).print(PlanTables(plan), crop=False)


def _worker_overrides(workers: int | None) -> list[str]:
    if workers is None:
        return []
    return ["workers.kind=local"] if workers == 0 else ["workers.kind=ray", f"workers.count={workers}"]


def _given(assume: Sequence[str]) -> dict[str, Known]:
    """The figures of the command line: ["turns=3"] is {"turns": Known(value=3.0, source="given")}."""
    from mcprl.errors import BadValueError, UnknownKeyError
    from mcprl.planning.plan import FIGURES, Known
    from mcprl.suggestions import did_you_mean

    given: dict[str, Known] = {}
    for entry in assume:
        name, _, number = entry.partition("=")
        if name not in FIGURES:
            hint = did_you_mean(name, FIGURES)
            raise UnknownKeyError(
                f"--assume {entry}: no figure is called {name!r}{hint}", fix=f"there are: {', '.join(FIGURES)}"
            )
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not value >= FIGURES[name] or math.isinf(value):
            raise BadValueError(
                f"--assume {entry}: {number!r} does not fit", fix=f"give a number, at least {FIGURES[name]:g}"
            )
        given[name] = Known(value=value, source="given")
    return given


def _known_from(path: Path) -> dict[str, Known]:
    """What a run that was made tells of its episodes, and of the speed of its hardware."""
    from mcprl.errors import NoRunError
    from mcprl.planning.plan import Known
    from mcprl.training.past_runs import read_run

    run = read_run(path)
    steps = [step for step in run.metrics if step.get("episodes")]
    if not steps:
        raise NoRunError(f"{path} has no finished step to learn from", fix="name a run with at least one step")

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
    return {name: Known(value=value, source=f"run {run.name}") for name, value in found.items()}
