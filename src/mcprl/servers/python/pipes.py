"""Our ends of a worker's pipes: read as they fill, cut where they overflow, written as they empty."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

__all__ = ["Inlet", "Outlet"]

_READ_BYTES = 1 << 16


class Inlet:
    """Reads a pipe to its end, and keeps the first `bound` bytes. Calls `on_data` after each read with something in it.

    What is beyond the bound is read and dropped: a writer must not wait for us.
    """

    def __init__(self, fd: int, bound: int, on_data: Callable[[], None]) -> None:
        self.kept = bytearray()
        self.is_over = False
        self._fd: int | None = fd
        self._bound = bound
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def read_what_is_there(self) -> None:
        """Catch up, at most to the bound: for a writer that goes on writing for ever."""
        while self._fd is not None and not self.is_over and self._read():
            pass

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read(self) -> bool:
        assert self._fd is not None
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        room = self._bound - len(self.kept)
        self.kept += data[:room]
        self.is_over = self.is_over or len(data) > room
        self._on_data()
        return True


class Outlet:
    """Writes messages to a pipe as it takes them. A reader that is gone is no error here: others notice its end."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._rest = memoryview(b"")
        self._closes = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def send(self, message: bytes, *, last: bool = False) -> None:
        """Write a message; after the last one the pipe is closed. Call it again only once the reader has answered."""
        self._rest = memoryview(message)
        self._closes = last
        if self._fd is not None:
            self._loop.add_writer(self._fd, self._write)
            self._write()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        assert self._fd is not None
        try:
            with contextlib.suppress(BlockingIOError):
                while self._rest:
                    self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BrokenPipeError:
            self._rest = memoryview(b"")
        if self._rest:
            return
        self._loop.remove_writer(self._fd)
        if self._closes:
            self.close()
