"""Reads files that another process is writing: step files, and line files, of which only new lines are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from mcprl.runs.folder import read_entry

T = TypeVar("T")
Signature = tuple[int, int, int]
"""Inode, size and modification time of a file. They change when the file is written."""


def file_signature(path: Path) -> Signature | None:
    """Return the signature of a file; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def step_files(folder: Path, ending: str) -> dict[int, Path]:
    """Return the files of a folder by step, such as step-00012.parquet. Other number formats are ignored."""
    found: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        digits = path.stem.removeprefix("step-")
        if digits.isascii() and digits.isdecimal() and path.name == f"step-{int(digits):05d}.{ending}":
            found[int(digits)] = path
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in a file. If the file is truncated or replaced, a new generation begins.

    Cursor(generation=0, entries=12)
    """

    generation: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News(Generic[T]):
    """The entries after a cursor. With `reset`, these are all entries, and everything read before is invalid."""

    entries: list[T]
    cursor: Cursor
    reset: bool = False


class LineFile(Generic[T]):
    """The entries of a file, one per line, decoded by `read`. An incomplete last line is read later.

    If `read` returns None for a line, the line is skipped and counted as damaged. If a resumed run replaces the file
    with a shorter one, or with one of another inode, it is read from the start.
    """

    def __init__(self, path: Path, read: Callable[[bytes], T | None]) -> None:
        self.path = path
        self.damaged = 0
        self._read = read
        self._entries: list[T] = []
        self._generation = 0
        self._inode: int | None = None
        self._offset = 0
        self._torn = b""
        self._lock = Lock()

    def entries(self) -> list[T]:
        """Return all current entries of the file."""
        return self.since(Cursor(generation=-1)).entries

    def since(self, cursor: Cursor) -> News[T]:
        """Return the entries that were added after the cursor."""
        with self._lock:
            self._read_on()
            now = Cursor(generation=self._generation, entries=len(self._entries))
            if cursor.generation != self._generation:
                return News(entries=list(self._entries), cursor=now, reset=True)
            return News(entries=self._entries[cursor.entries :], cursor=now)

    def now(self) -> Cursor:
        """Return a cursor at the current end of the file."""
        return self.since(Cursor(generation=-1)).cursor

    def _read_on(self) -> None:
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._inode != found.st_ino or found.st_size < self._offset:
                    self._start_over(found.st_ino)
                if found.st_size == self._offset:
                    return
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            if self._inode is not None:
                self._start_over(None)
            return
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        entries = [entry for line in lines if (entry := self._read(line)) is not None]
        self.damaged += len(lines) - len(entries)
        self._entries += entries

    def _start_over(self, inode: int | None) -> None:
        if self._inode is not None or self._entries:
            self._generation += 1
        self._inode, self._offset, self._torn, self._entries, self.damaged = inode, 0, b"", [], 0


class JsonLines(LineFile[dict[str, Any]]):
    """JSON objects, as in metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, read_entry)
