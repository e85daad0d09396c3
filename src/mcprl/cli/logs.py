"""`mcprl logs`: what the processes of a run wrote while it ran."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcprl.monitoring.run_logs import RunLog

__all__ = ["command"]

_OUTPUTS = Path("outputs")


def command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Folder of a run, or its name below outputs; default: the newest run there.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Log to print, such as vllm.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing what is added, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Lines to print.")] = 50,
    grep: Annotated[str, typer.Option("--grep", metavar="TEXT", help="Print only lines that hold this text.")] = "",
) -> None:
    """List the logs of a run, or print the end of one.

    A single name that is no run is that of a log of the newest run: mcprl logs vllm --follow.
    """
    from mcprl.errors import NoRunError
    from mcprl.monitoring.run_logs import choose_log, find_logs

    path, name = _choose_run(run, name)
    logs = find_logs(path)
    if name is not None:
        _print_log(choose_log(logs, name, path.resolve().name), lines=lines, grep=grep, follow=follow)
    elif follow or grep:
        names = ", ".join(sorted(log.name for log in logs)) or "none yet"
        raise NoRunError("--follow and --grep need the name of a log", fix=f"name one of those there: {names}")
    else:
        _print_list(logs, path)


def _choose_run(run: str | None, name: str | None) -> tuple[Path, str | None]:
    """The folder of the run that was meant, and the name of the log."""
    from mcprl.monitoring.run_logs import find_logs
    from mcprl.training.past_runs import find_runs, is_run, read_run

    if run is not None:
        for path in (Path(run), _OUTPUTS / run):
            if is_run(path):
                return path, name
    newest = next((found.path for found in find_runs(_OUTPUTS)), None) if _OUTPUTS.is_dir() else None
    if run is not None and name is None and newest is not None:
        stems = {stem for log in find_logs(newest) for stem in (log.name, log.name.removesuffix(".log"))}
        if run in stems:
            return newest, run
    if run is not None:
        # There is no such run: this says so, with the nearest name.
        return read_run(_OUTPUTS / run if len(Path(run).parts) == 1 else Path(run)).path, name
    if newest is None:
        from mcprl.errors import NoRunError

        raise NoRunError(f"there are no runs in {_OUTPUTS}", fix="name the folder of a run")
    return newest, name


def _print_list(logs: Sequence[RunLog], path: Path) -> None:
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table
    from rich.text import Text

    from mcprl.monitoring.durations import duration
    from mcprl.monitoring.printable import printable

    console = Console(highlight=False)
    if not logs:
        console.print(printable(f"No logs in {path / 'logs'}."), markup=False, soft_wrap=True)
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("log", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("last change", no_wrap=True)
    now = time.time()
    for log in logs:
        table.add_row(Text(printable(log.name)), decimal(log.size_bytes), f"{duration(max(0, now - log.changed))} ago")
    console.print(table)
    shown = printable(f"\nmcprl logs {path} NAME prints the end of one; --follow goes on with what is added.")
    console.print(shown, markup=False, soft_wrap=True)


def _print_log(log: RunLog, *, lines: int, grep: str, follow: bool) -> None:
    from mcprl.monitoring.printable import printable
    from mcprl.monitoring.run_logs import follow_lines, last_lines
    from mcprl.redact import SECRETS

    def show(line: str) -> None:
        # Those of tool servers were cleaned when they were written; vLLM and others write theirs themselves.
        print(printable(SECRETS.redact(line)), flush=follow)

    found, end = last_lines(log.path, lines, grep, only_whole=follow)
    for line in found:
        show(line)
    if not follow:
        return
    try:
        for line in follow_lines(log.path, end, grep):
            show(line)
    except KeyboardInterrupt:  # the way to end it
        return
