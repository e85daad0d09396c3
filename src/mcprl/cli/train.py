"""`mcprl train`: run a recipe from start to end. `mcprl sft` runs it in the same way."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.config import RunConfig

DEBUG_HELP = "Log everything to logs/debug.log and, shortened, to stderr; print tracebacks."
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration, then exit.")]
Debug = Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)]


def command(recipe: Recipe, overrides: Overrides = None, dry_run: DryRun = False, debug: Debug = False) -> None:
    """Train a model with a recipe; the run's folder holds the adapter, the metrics and every trajectory.

    Ctrl-C or SIGTERM stops the run so that `mcprl resume` can continue it; a second signal stops it at once.
    """
    from mcprl.recipe import load_recipe

    run_in_new_folder(load_recipe(recipe, overrides or []).for_rl(), dry_run=dry_run, debug=debug)


def run_in_new_folder(config: RunConfig, *, dry_run: bool, debug: bool) -> None:
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
    """Explain why the folder's name differs from the run's name; empty if it does not."""
    from mcprl.runs.folder import lock_holder

    first = folder.with_name(name)
    if folder == first:
        return ""
    running, pid = lock_holder(first)
    return f" ({first} is running, process {pid or 'unknown'})" if running else f" ({first} is an earlier run)"
