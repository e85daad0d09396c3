"""`mcprl` as a person starts it: a process of its own, waited for with a deadline that only a hang can reach."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["ended", "has_an_episode", "start", "wait_for"]

_DEADLINE_S = 900.0
_POLL_S = 0.02


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mcprl", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and all that it said, without line breaks that only the width of a terminal made."""
    stdout, stderr = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, re.sub(r"\s+", " ", stdout + stderr)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(_POLL_S)


def has_an_episode(journal: Path) -> bool:
    """Whether an episode has been finished in the journal's file of a step."""
    return journal.exists() and b"\n" in journal.read_bytes()
