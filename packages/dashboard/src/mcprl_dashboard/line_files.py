"""Follows a file of JSON lines that another process appends to: only what is new is read, once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from mcprl.runs.folder import read_entry

__all__ = ["Cursor", "LineFile", "News"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Up to where somebody has read. A file that was cut or replaced is of another generation.

    Cursor(generation=0, entries=12)
    """

    generation: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a file has beyond a cursor. With `reset`, all that was read before is void, and these are all entries."""

    entries: list[dict[str, Any]]
    cursor: Cursor
    reset: bool = False


class LineFile:
    """The entries of a file such as metrics.jsonl. A last line without its end waits until that is written.

    A run that is resumed replaces the file by a shorter one, or one of another inode; then it is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[dict[str, Any]] = []
        self._generation = 0
        self._inode: int | None = None
        self._offset = 0
        self._torn = b""
        self._lock = Lock()

    def entries(self) -> list[dict[str, Any]]:
        """All entries that the file has now."""
        return self.since(Cursor(generation=-1)).entries

    def since(self, cursor: Cursor) -> News:
        """The entries that were added after those that the cursor covers."""
        with self._lock:
            self._read_on()
            now = Cursor(generation=self._generation, entries=len(self._entries))
            if cursor.generation != self._generation:
                return News(entries=list(self._entries), cursor=now, reset=True)
            return News(entries=self._entries[cursor.entries :], cursor=now)

    def now(self) -> Cursor:
        """A cursor behind all that the file has now."""
        return self.since(Cursor(generation=-1)).cursor

    def _read_on(self) -> None:
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._inode != found.st_ino or found.st_size < self._offset:
                    self._begin_anew(found.st_ino)
                if found.st_size == self._offset:
                    return
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            if self._inode is not None:
                self._begin_anew(None)
            return
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        self._entries += [entry for line in lines if (entry := read_entry(line)) is not None]

    def _begin_anew(self, inode: int | None) -> None:
        if self._inode is not None or self._entries:
            self._generation += 1
        self._inode, self._offset, self._torn, self._entries = inode, 0, b"", []
