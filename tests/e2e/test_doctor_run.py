"""`mcprl doctor --fast` on the shipped recipes: no false alarm. Whole, with vLLM, it is part of the quickstart."""
# R25

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
DEADLINE_S = 900  # only a hang takes so long

# What may be said of a recipe on a machine without GPUs and without the hub; of the recipe itself, nothing.
ABOUT_THE_MACHINE = "this machine"

pytestmark = pytest.mark.slow


def examine(recipe: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "mcprl", "doctor", str(recipe), "--fast", "--json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=DEADLINE_S)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def of(report: dict[str, Any], *severities: str) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["severity"] in severities]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_shipped_recipe_raises_no_false_alarm(recipe, time_server, smollm2, skyrl_python):
    status, report = examine(recipe)
    assert of(report, "bad") == []
    assert status == 0
    assert [finding for finding in of(report, "warn") if ABOUT_THE_MACHINE not in finding["measured"]] == []
