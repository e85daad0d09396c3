"""`mcprl logs`: the log of a run and those of its processes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from mcprl.cli.printing import duration, plain_table, printable, words
from mcprl.errors import NoRunError, did_you_mean

_TRAIN_LOG = "train.log"
_BLOCK_BYTES = 65536
_POLL_S = 0.2


def find_logs(run: Path) -> dict[str, Path]:
    """The logs of a run by their path in its `logs` folder, and its train.log; the last changed first."""
    found: list[tuple[float, str, Path]] = []
    for path in (run / _TRAIN_LOG, *(run / "logs").rglob("*")):
        try:
            if path.is_file():
                name = _TRAIN_LOG if path.parent == run else path.relative_to(run / "logs").as_posix()
                found.append((-path.stat().st_mtime, name, path))
        except FileNotFoundError:  # renamed since it was listed
            continue
    return {name: path for _, name, path in sorted(found)}


def _choose_log(logs: Mapping[str, Path], written: str, run: str) -> Path:
    """Return the log with this name; `vllm` means `vllm.log`. Raises NoRunError if there is none."""
    for name in (written, f"{written}.log"):
        if name in logs:
            return logs[name]
    names = sorted(logs)
    stems = [name.removesuffix(".log") for name in names]
    there = f"it has {', '.join(names)}" if names else "it has none yet"
    raise NoRunError(f"run {run} has no log {written!r}{did_you_mean(written, [*names, *stems])}", fix=there)


def last_lines(path: Path, count: int, text: str = "", *, only_whole: bool = False) -> tuple[list[str], int]:
    """Return the last `count` lines that contain `text`, and the file offset at which they end.

    With `only_whole`, skip a last line that is still being written.
    """
    found: deque[str] = deque(maxlen=count)
    end = 0
    with path.open("rb") as file:
        for line in file:
            if only_whole and not line.endswith(b"\n"):
                break
            end += len(line)
            decoded = _decode(line.removesuffix(b"\n"))
            if text in decoded:
                found.append(decoded)
    return list(found), end


def follow_lines(
    path: Path, start: int, text: str = "", *, wait: Callable[[], bool] = lambda: time.sleep(_POLL_S) is None
) -> Iterator[str]:
    """Yield the lines that contain `text` and are added after a position, until `wait` returns False.

    If the file is truncated or replaced, it is read from the beginning.
    """
    file = path.open("rb")
    try:
        file.seek(start)
        line = b""
        while True:
            added = file.read(_BLOCK_BYTES)
            if added:
                *whole, line = (line + added).split(b"\n")
                yield from (decoded for decoded in map(_decode, whole) if text in decoded)
                continue
            if not wait():
                break
            if _was_replaced(path, file.fileno()):
                file.close()
                file, line = path.open("rb"), b""
            elif os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)
                line = b""
    finally:
        file.close()
    if line and text in _decode(line):
        yield _decode(line)


def _was_replaced(path: Path, descriptor: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:  # the old file has been renamed, and the new one does not exist yet
        return False
    return not os.path.samestat(named, os.fstat(descriptor))


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")


_OUTPUTS = Path("outputs")


def command(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Run folder, or a name under outputs; default: the newest run there.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Log to print, such as vllm.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Number of lines.")] = 50,
    grep: Annotated[str, typer.Option("--grep", metavar="TEXT", help="Print only lines that contain this text.")] = "",
) -> None:
    """List the logs of a run, or print the end of one.

    With one argument that is not a run, prints that log of the newest run: mcprl logs vllm --follow.
    """
    path, name = _choose_run(run, name)
    logs = find_logs(path)
    if name is not None:
        _print_log(_choose_log(logs, name, path.resolve().name), lines=lines, grep=grep, follow=follow)
    elif follow or grep:
        names = ", ".join(sorted(logs)) or "none yet"
        raise NoRunError("--follow and --grep need the name of a log", fix=f"give one of these logs: {names}")
    else:
        _print_list(logs, path)


def _choose_run(run: str | None, name: str | None) -> tuple[Path, str | None]:
    """Return the folder of the run, and the name of the log."""
    from mcprl.runs.past_runs import find_runs, is_run, read_run

    if run is not None:
        for path in (Path(run), _OUTPUTS / run):
            if is_run(path):
                return path, name
    newest = next((found.path for found in find_runs(_OUTPUTS)), None) if _OUTPUTS.is_dir() else None
    if run is not None and name is None and newest is not None and {run, f"{run}.log"} & find_logs(newest).keys():
        return newest, run
    if run is not None:
        # There is no such run, so `read_run` raises an error with the closest name.
        return read_run(_OUTPUTS / run if len(Path(run).parts) == 1 else Path(run)).path, name
    if newest is None:
        raise NoRunError(f"there are no runs in {_OUTPUTS}", fix="give the folder of a run")
    return newest, name


def _print_list(logs: Mapping[str, Path], path: Path) -> None:
    from rich.console import Console
    from rich.filesize import decimal

    console = Console(highlight=False)
    if not logs:
        console.print(words(f"No logs in {path / 'logs'}."), soft_wrap=True)
        return
    table = plain_table("log", right=("size",))
    table.add_column("last change", no_wrap=True)
    now = time.time()
    for name, log in logs.items():
        seen = log.stat()
        table.add_row(words(name), decimal(seen.st_size), f"{duration(max(0, now - seen.st_mtime))} ago")
    console.print(table)
    console.print(words(f"\nmcprl logs {path} NAME prints the end of one; --follow keeps printing."), soft_wrap=True)


def _print_log(log: Path, *, lines: int, grep: str, follow: bool) -> None:
    from mcprl.secrets import SECRETS

    def show(line: str) -> None:
        # Logs of tool servers are redacted when written, but vLLM and others write their own logs.
        print(printable(SECRETS.redact(line)), flush=follow)

    found, end = last_lines(log, lines, grep, only_whole=follow)
    for line in found:
        show(line)
    if not follow:
        return
    try:
        for line in follow_lines(log, end, grep):
            show(line)
    except KeyboardInterrupt:  # the normal way to end it
        return
