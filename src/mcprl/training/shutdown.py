"""Stopping a run early on SIGTERM, SIGHUP or Ctrl-C, with limited time to save and a distinct exit code.

The first signal asks the run to stop. The run then has SHUTDOWN_S seconds to save what it can. The last checkpoint and
all finished episodes are already on disk. When the time is up, or at the second signal, the process exits immediately.
Its child processes end with it: see `mcprl.processes`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from mcprl.runs.folder import RunStopped

EXIT_STOPPED = 75
"""The exit code of a run that was asked to stop and can be resumed."""

SHUTDOWN_S = 10.0
"""The time in seconds that the run has to save and exit after SIGTERM or Ctrl-C."""

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = "\x1b[?25h"
# The process exits after this share of the time, because exiting takes a moment too.
_LAST_MOMENT = 0.95


class Shutdown:
    """Whether the run was asked to stop, and how much time is left."""

    def __init__(self, deadline_s: float = SHUTDOWN_S, on_request: Callable[[str], None] | None = None) -> None:
        self.cause = ""
        self.leaves_work = False  # a thread is in the middle of an update, and nobody waits for it
        self._deadline_s = deadline_s
        self._on_request = on_request
        self._requested = asyncio.Event()
        self._since = 0.0
        self._work: asyncio.Task[Any] | None = None
        self._timer: threading.Timer | None = None

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def request(self, cause: str = "a request") -> None:
        """Ask the run to stop. Outside of `orderly`, the task that entered `on_signals` is cancelled."""
        if self.requested:
            return
        self.cause, self._since = cause, time.monotonic()
        self._requested.set()
        if self._work is not None:
            self._work.cancel()
        if self._on_request is not None:
            self._on_request(cause)

    @contextmanager
    def orderly(self) -> Generator[None]:
        """A context in which a request to stop does not cancel the run, because the run checks for requests itself."""
        work, self._work = self._work, None
        try:
            yield
        finally:
            self._work = work

    async def unless_stopped(self, work: Coroutine[Any, Any, T], *, share: float) -> T:
        """Return the result of `work`.

        After a request to stop, `work` gets only `share` of the shutdown time. Raises RunStopped if it takes longer.
        """
        working = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._requested.wait())
        try:
            await asyncio.wait({working, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                left_s = self._since + share * self._deadline_s - time.monotonic()
                await asyncio.wait({working}, timeout=max(0.0, left_s))
            if not working.done():
                raise RunStopped
            return working.result()
        finally:
            asked.cancel()
            working.cancel()
            await asyncio.gather(asked, working, return_exceptions=True)

    @contextmanager
    def on_signals(self) -> Generator[None]:
        """In this context, SIGTERM, SIGINT and SIGHUP request a stop. A second signal or a timeout ends the process.

        Only the main thread can handle signals. In any other thread, only `request` stops the run.
        """
        loop, self._work = asyncio.get_running_loop(), asyncio.current_task()

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._timer is not None:
                _end_now(128 + number, "ended immediately because of a second signal")
            self._timer = threading.Timer(_LAST_MOMENT * self._deadline_s, self._end_late)
            self._timer.daemon = True
            self._timer.start()
            loop.call_soon_threadsafe(self.request, signal.Signals(number).name)

        # Under nohup, SIGHUP stays ignored. A background job ignores SIGINT too, but `kill -INT` must stop it.
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = [number for number in _SIGNALS if number != signal.SIGHUP or not is_ignored]
        if threading.current_thread() is not threading.main_thread():
            numbers = []
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            # The timer keeps running: the time limit includes closing everything else, such as servers that hang.
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end_late(self) -> None:
        if self.leaves_work:
            _end_now(EXIT_STOPPED, "stopped in the middle of an update, which will be repeated")
        _end_now(EXIT_STOPPED, f"ended immediately, because stopping took more than {self._deadline_s:g} s")

    def close(self) -> None:
        """Stop the timer, because the run has ended and its process continues."""
        if self._timer is not None:
            self._timer.cancel()


def _end_now(code: int, why: str) -> None:
    """Exit without waiting for threads, because one of them may be in the middle of an update."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), _SHOW_CURSOR.encode())
    os.write(2, f"mcprl: {why}; everything saved before is intact, so continue with `mcprl resume`\n".encode())
    os._exit(code)
