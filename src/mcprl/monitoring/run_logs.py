"""The logs of a run: which there are, the end of one, and what is added to it while one looks."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcprl.errors import NoRunError
from mcprl.suggestions import did_you_mean

__all__ = ["RunLog", "choose_log", "find_logs", "follow_lines", "last_lines"]

_BLOCK_BYTES = 65536
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """A file in the folder of logs. `name` is its path there; `changed` is in seconds since 1970.

    RunLog(name="vllm.log", path=Path("outputs/hello/logs/vllm.log"), size_bytes=18_332, changed=1.7e9)
    """

    name: str
    path: Path
    size_bytes: int
    changed: float


def find_logs(run: Path) -> list[RunLog]:
    """The logs in a run's folder, the last changed first."""
    found: list[RunLog] = []
    for folder, _, names in os.walk(run / "logs"):
        for name in names:
            path = Path(folder, name)
            try:
                seen = path.stat()
            except FileNotFoundError:  # renamed since it was listed, or a link to nothing
                continue
            if path.is_file():
                relative = path.relative_to(run / "logs").as_posix()
                found.append(RunLog(name=relative, path=path, size_bytes=seen.st_size, changed=seen.st_mtime))
    return sorted(found, key=lambda log: (-log.changed, log.name))


def choose_log(logs: Sequence[RunLog], written: str, run: str) -> RunLog:
    """The log of a name, for which `vllm` may stand where it is `vllm.log`. Raises NoRunError where there is none."""
    for name in (written, f"{written}.log"):
        for log in logs:
            if log.name == name:
                return log
    names = sorted(log.name for log in logs)
    stems = [name.removesuffix(".log") for name in names]
    there = f"it has {', '.join(names)}" if names else "it has none yet"
    raise NoRunError(f"run {run} has no log {written!r}{did_you_mean(written, [*names, *stems])}", fix=there)


def last_lines(path: Path, count: int, text: str = "", *, only_whole: bool = False) -> tuple[list[str], int]:
    """The last `count` lines that hold `text`, and where in the file they end: what is added later begins there.

    With `only_whole`, a last line that is still being written is left for later. Read from the end, so that a long log
    costs no more than its end.
    """
    found: deque[str] = deque()
    with path.open("rb") as file:
        end = file_end = position = file.seek(0, os.SEEK_END)
        rest = b""
        while position > 0 and len(found) < count:
            start = max(0, position - _BLOCK_BYTES)
            file.seek(start)
            # The first line of what was read may have begun before it.
            rest, *lines = (file.read(position - start) + rest).split(b"\n")
            if start == 0:
                lines.insert(0, rest)
            if position == file_end and lines and (lines[-1] == b"" or only_whole):
                end -= len(lines.pop())  # what follows the last line's end
            position = start
            for line in reversed(lines):
                decoded = _decode(line)
                if text in decoded and len(found) < count:
                    found.appendleft(decoded)
    return list(found), end


def follow_lines(
    path: Path, start: int, text: str = "", *, wait: Callable[[], bool] = lambda: time.sleep(_POLL_S) is None
) -> Iterator[str]:
    """The lines with `text` that are added after a place, as they come, until `wait` says no.

    A file that was cut or replaced by a new one is read from its beginning.
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
    except FileNotFoundError:  # between the renaming of the old and the making of the new
        return False
    return not os.path.samestat(named, os.fstat(descriptor))


def _decode(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")
