"""`mcprl train`: run a recipe from start to end."""

from __future__ import annotations

from typing import Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

__all__ = ["DEBUG_HELP", "command"]

DEBUG_HELP = "Write all that happens to logs/debug.log and, shortened, to stderr; print tracebacks."


def command(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)] = False,
) -> None:
    """Train a model by a recipe; the run's folder holds the adapter, the metrics and every trajectory.

    Ctrl-C or SIGTERM stop it so that `mcprl resume` can go on; a second one stops it at once.
    """
    from mcprl.recipe import load_recipe

    config = load_recipe(recipe, overrides or [])
    if dry_run:
        typer.echo(config.to_yaml(), nl=False)
        return

    from mcprl.cli.running import run_to_the_end

    if not debug:
        run_to_the_end(config, recipe=recipe)
        return

    from mcprl.cli.debug_log import debugging
    from mcprl.runs.folder import RunFolder

    # Made here rather than by the run, because its start is what most often wants debugging.
    with RunFolder.create(config) as folder, debugging(folder.logs):
        run_to_the_end(config, recipe=recipe, folder=folder)
