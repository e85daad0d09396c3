"""`mcprl parity`: do sampler and learner agree about the same tokens? Asked before a step is spent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.config import RunConfig
    from mcprl.training.parity import ParityReport

__all__ = ["command"]


def command(
    recipe: Recipe,
    prompts: Annotated[int, typer.Option("--prompts", "-n", min=1, help="How many episodes to compare.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
    overrides: Overrides = None,
) -> None:
    """Compare sampler and learner on a few short episodes: the same tokens, the same probabilities?

    Exits with 1 where they disagree.
    """
    import asyncio

    from rich.console import Console

    from mcprl.monitoring.parity_table import ParityTable
    from mcprl.recipe import load_recipe
    from mcprl.verdicts import Severity

    report = asyncio.run(_measure(load_recipe(recipe, overrides or []), prompts))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        Console(highlight=False).print(ParityTable(report))
    if report.verdict.severity is Severity.BAD:
        raise typer.Exit(1)


async def _measure(config: RunConfig, prompts: int) -> ParityReport:
    from mcprl.monitoring.console import StageConsole
    from mcprl.tasks import load_tasks
    from mcprl.training.parity import run_parity

    with StageConsole() as console:
        return await run_parity(config, load_tasks(config.tasks.train), console, prompts=prompts)
