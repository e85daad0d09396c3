"""`mcprl resume`: go on with a run that ended before its time."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from mcprl.cli.options import Overrides
from mcprl.cli.train import DEBUG_HELP

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as outputs/hello-cpu.")],
    overrides: Overrides = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from", help="Go back to the checkpoint of this step; what came after it is given up."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say where the run stands and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)] = False,
) -> None:
    """Go on with a run from its newest whole checkpoint. Episodes that were finished after it are not played again."""
    from mcprl.monitoring.standing import print_standing
    from mcprl.training.folder import RunFolder
    from mcprl.training.resuming import find_standing

    folder = RunFolder.open(run)
    standing = find_standing(folder, overrides or [], from_step)
    print_standing(standing, folder.path)
    if dry_run:
        folder.close()
        return

    from mcprl.cli.running import run_to_the_end
    from mcprl.monitoring.debug_log import debugging

    with debugging(folder.logs) if debug else nullcontext():
        run_to_the_end(standing.config, recipe=folder.path / "config.yaml", folder=folder, standing=standing)
