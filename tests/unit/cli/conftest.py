"""The command as a user runs it, and a recipe of one's own to run it on."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from mcprl.cli import main

ROOT = Path(__file__).parents[3]


@pytest.fixture
def mcprl(monkeypatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the whole of `mcprl` in the repository's root and in this process, which saves importing its libraries."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ROOT)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["mcprl", *arguments])
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(sys.argv, ended.value.code, stdout.getvalue(), stderr.getvalue())

    return run


@pytest.fixture
def mcprl_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `mcprl` in the repository's root, as a process of its own: exit codes and both streams are real."""

    def run(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "mcprl", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout_s)

    return run
