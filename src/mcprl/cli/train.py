"""`mcprl train`: run a recipe from start to end."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

__all__ = ["command"]


def command(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Train a model by a recipe; the run's folder holds the adapter, the metrics and every trajectory."""
    from mcprl.recipe import load_recipe

    config = load_recipe(recipe, overrides or [])
    if dry_run:
        typer.echo(config.to_yaml(), nl=False)
        return

    from mcprl.monitoring.console import TrainingConsole, print_summary
    from mcprl.training import open_run, train

    async def run() -> None:
        with TrainingConsole(config) as console:
            async with open_run(config, console) as run:
                summary = await train(run)
        print_summary(summary, recipe=recipe, config=config, folder=run.folder.path)

    asyncio.run(run())
