"""`mcprl dashboard`: runs and their episodes in a browser, live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="[RUN_OR_OUTPUTS]", help="Folder of a run, or a folder of runs.")
    ] = Path("outputs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser, if available.")] = True,
) -> None:
    """Show runs in a browser: curves, health, tools, and every episode. Only this machine can reach it."""
    from mcprl_dashboard.app import serve

    try:
        serve(folder, port=port, open_browser=open_browser)
    except KeyboardInterrupt:  # the normal way to end it
        raise typer.Exit from None
