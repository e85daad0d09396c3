"""Processes that a run has left behind: those that bear its mark after it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from mcprl.processes.guard import OWNER_MARK
from servers.harness import say

__all__ = ["left_behind"]

LIMIT_S = 2.0
_POLL_S = 0.01


def left_behind(mark: str, variable: str = OWNER_MARK) -> int:
    """How many processes of an mcprl that has ended live on for two seconds, its guard included. They are ended.

    Descendants have the mark in this variable of their environment, the guard in its arguments.
    """
    text = f"{variable}={mark}".encode()
    ends = time.monotonic() + LIMIT_S
    while (left := _bearing(text)) and time.monotonic() < ends:
        time.sleep(_POLL_S)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            say(f"left behind: {pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:200]!r}")
            os.kill(pid, signal.SIGKILL)
    return len(left)


def _bearing(text: bytes) -> list[int]:
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        # It may have ended meanwhile.
        with contextlib.suppress(OSError):
            of_it = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
            if text in of_it:
                found.append(int(name))
    return found
