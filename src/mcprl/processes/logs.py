"""Logs of child processes that pass through a filter on their way to the disk."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["CleanedLog"]

_logger = logging.getLogger(__name__)

_READ_BYTES = 65536
_MAX_LINE_CHARS = 65536
_CUT_SLACK_BYTES = 4096
_MAX_LOG_BYTES = 16 * 1024 * 1024


class CleanedLog:
    """Appends a child's output to a file, line by line, cleaned and bounded. Never lets the child wait."""

    def __init__(self, path: Path, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._file = path.open("ab", buffering=0)
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)
        self._line = bytearray()
        self._room = _MAX_LOG_BYTES
        self._is_full = False

    def take_write_end(self) -> int:
        """The end for the child. Whoever takes it closes it."""
        return self._write_end

    def close(self) -> None:
        if not self._file.closed:
            self.read_what_is_there()
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._file.close()

    def read_what_is_there(self) -> None:
        """Catch up with a child that has ended, its last line without an end included."""
        while self._read():
            pass
        if self._line:
            self._end_line()

    def _read(self) -> bool:
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._read_end)
        elif not self._is_full:
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._extend(line)
                self._end_line()
            self._extend(rest)
        return bool(data)

    def _extend(self, part: bytes) -> None:
        # A little more than is kept, so that what `clean` looks for is not cut in two before it is seen.
        self._line += part[: _MAX_LINE_CHARS + _CUT_SLACK_BYTES - len(self._line)]

    def _end_line(self) -> None:
        line = self._clean(self._line.decode(errors="replace"))
        self._line.clear()
        if len(line) > _MAX_LINE_CHARS:
            line = f"{line[:_MAX_LINE_CHARS]} [line cut]"
        data = f"{line}\n".encode(errors="replace")
        self._room -= len(data)
        if self._is_full:
            return
        if self._room < 0:
            self._is_full = True
            data = b"[log full: what follows is dropped]\n"
        try:
            self._file.write(data)
        except OSError as error:
            self._is_full = True
            _logger.warning("the log %s cannot be written, the rest is dropped: %s", self._file.name, error)
