"""The command line starts at once: looking at the help must not cost a torch import."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HEAVY = ("torch", "vllm", "transformers", "ray", "peft", "accelerate", "tinker", "mcp", "pyarrow")
LIST_HEAVY_AFTER_HELP = f"""
import sys
from mcprl.cli import main
sys.argv = ["mcprl", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(sorted(set(sys.modules) & set({HEAVY!r})))
"""


def test_help_imports_no_heavy_library():
    command = [sys.executable, "-c", LIST_HEAVY_AFTER_HELP]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_what_plays_episodes_at_an_endpoint_and_every_package_imports_no_grammars():
    """They need torch, which the base install does not have."""
    modules = "mcprl.episodes.stage, mcprl.evaluation.harness, mcprl_agents.runner, mcprl_skyrl_gym, mcprl_synthesis"
    code = f"import sys, {modules}; print('mcprl.grammar.masks' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout.strip()) == (0, "False"), result.stderr


@pytest.mark.alone
def test_help_answers_and_its_time_is_known(record_property):
    """Whether it is quick enough, the promise `help-is-quick` says."""
    command = [str(Path(sys.executable).with_name("mcprl")), "--help"]
    times_ms: list[float] = []
    for _ in range(15):
        started = time.perf_counter()
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        times_ms.append((time.perf_counter() - started) * 1000)
        assert result.returncode == 0, result.stderr
        assert "Usage" in result.stdout
    record_property("help_ms", round(min(times_ms), 1))
