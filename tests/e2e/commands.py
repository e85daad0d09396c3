"""`mcprl` as a person starts it: a process of its own, waited for with a deadline that only a hang can reach.

What is not about a process is run in this one: that saves the ten seconds in which a process imports its libraries.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from mcprl.cli import app

__all__ = ["ended", "has_an_episode", "run_here", "start", "wait_for"]

_DEADLINE_S = 900.0
_POLL_S = 0.02


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mcprl", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and all that it said, without line breaks that only the width of a terminal made."""
    stdout, stderr = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, re.sub(r"\s+", " ", stdout + stderr)


def run_here(*arguments: object) -> tuple[int, str]:
    """The same of a command in this process. An error of mcprl is raised."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, re.sub(r"\s+", " ", done.stdout + done.stderr)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(_POLL_S)


def has_an_episode(journal: Path) -> bool:
    """Whether an episode has been finished in the journal's file of a step."""
    return journal.exists() and b"\n" in journal.read_bytes()
