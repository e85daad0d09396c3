"""`mcprl train`: run a recipe from start to end."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

__all__ = ["DEBUG_HELP", "command"]

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
    from mcprl.runs.folder import RunFolder

    with RunFolder.create(config) as folder, _removed_if_useless(folder.path):
        with enduring_output():
            print(printable(f"run {folder.path}: loading libraries"), flush=True)
        # Importing torch takes seconds, or a minute on a busy machine.
        from mcprl.cli.running import run_to_the_end

        with debugging(folder.logs) if debug else nullcontext():
            run_to_the_end(config, folder)


@contextmanager
def _removed_if_useless(folder: Path) -> Generator[None]:
    """Remove the folder of a run that fails before its first step, unless the error names a file in it."""
    from mcprl.errors import McprlError

    try:
        yield
    except (McprlError, KeyboardInterrupt) as error:
        results = [*folder.glob("metrics.jsonl"), *folder.glob("checkpoints/*"), *folder.glob("logs/debug.log")]
        results += [path for path in folder.glob("journal/*") if path.stat().st_size]
        if not results and str(folder) not in str(error):
            shutil.rmtree(folder, ignore_errors=True)
            error.add_note(f"{folder} was removed: the run failed before its first step")
        raise
