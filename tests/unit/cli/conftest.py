"""The command as a user runs it, and a recipe of one's own to run it on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def mcprl(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `mcprl` in the repository's root, as a process of its own: exit codes and both streams are real."""

    def run(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "mcprl", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout_s)

    return run
