"""What `mcprl tasks import` makes of recorded conversations, as a user goes on with it: doctor, solutions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "recorded" / "conversations.jsonl"
DEADLINE_S = 800  # only a hang takes so long
# Servers start in the test's own environment, beside other work.
PATIENT = {"slack": {"start_deadline_s": 300}}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # servers.json starts `mcprl`
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": path}
    command = [sys.executable, "-m", "mcprl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=DEADLINE_S)


def test_the_example_is_imported_examined_and_solved(tmp_path, tiny_qwen3):
    done = run(tmp_path, "tasks", "import", str(EXAMPLE), "--out", "quotes", "--model", str(tiny_qwen3))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 rows: 7 usable, 7 with proven checks" in done.stdout
    recipe = tmp_path / "quotes" / "recipe.yaml"
    text = recipe.read_text().replace("context_tokens: 8192", "context_tokens: 4096")  # the tiny model has no more
    recipe.write_text(text.replace("  settings:\n", f"  settings:\n    slack: {json.dumps(PATIENT['slack'])}\n"))
    done = run(tmp_path, "doctor", "quotes/recipe.yaml", "--fast", "--json")
    found = json.loads(done.stdout)["findings"]
    assert done.returncode == 0, done.stdout
    worlds = {each["check"]: each["measured"] for each in found}
    assert "fmp_get_quote" in worlds["recorded"]
    assert "send_slack_message" in worlds["stand-in slack"]
    done = run(tmp_path, "tasks", "validate", "quotes/tasks.jsonl", "--recipe", "quotes/recipe.yaml", "--gold")
    assert done.returncode == 0, done.stdout
    assert "6 of 6 solutions score 1.0" in done.stdout
