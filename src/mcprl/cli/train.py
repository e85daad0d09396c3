"""`mcprl train`: run a recipe from start to end."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

DEBUG_HELP = "Log everything to logs/debug.log and, shortened, to stderr; print tracebacks."


def command(
    recipe: Recipe,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)] = False,
) -> None:
    """Train a model with a recipe; the run's folder holds the adapter, the metrics and every trajectory.

    Ctrl-C or SIGTERM stop it so that `mcprl resume` can continue; a second one stops it at once.
    """
    from mcprl.recipe import load_recipe

    config = load_recipe(recipe, overrides or [])
    if dry_run:
        typer.echo(config.to_yaml(), nl=False)
        return

    from mcprl.cli.console import enduring_output
    from mcprl.cli.debug_log import debugging
    from mcprl.cli.printing import printable
    from mcprl.cli.stages import loading_libraries
    from mcprl.runs.folder import RunFolder

    with RunFolder.create(config) as folder:
        with enduring_output():
            print(printable(f"run {folder.path}{_why_numbered(folder.path, config.name)}"), flush=True)
            with loading_libraries(folder):
                from mcprl.cli.running import run_to_the_end

        with debugging(folder.logs) if debug else nullcontext():
            run_to_the_end(config, folder)


def _why_numbered(folder: Path, name: str) -> str:
    """Why the folder is not named after the run alone."""
    from mcprl.runs.folder import lock_holder

    first = folder.with_name(name)
    if folder == first:
        return ""
    running, pid = lock_holder(first)
    return f" ({first} is running, process {pid or 'unknown'})" if running else f" ({first} is an earlier run)"
