"""Recorded conversations, from files to a run, as docs/guides/from-recorded-conversations.md goes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.process, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "recorded" / "conversations.jsonl"
DATA = ROOT.parent / "shared" / "data"
DEADLINE_S = 1200  # only a hang takes so long
# The tiny model has no longer context.
SMALL = {
    "engine": "transformers",
    "model": {"dtype": "float32", "context_tokens": 4096},
    "episodes": {"group_size": 2},
    "learner": {"max_parity_error": 1e-3},
    "sft": {"steps": 1, "batch_size": 2},
    "training": {"steps": 1, "tasks_per_step": 1},
}


def make_small(recipe: Path) -> None:
    settings = yaml.safe_load(recipe.read_text())
    for section, values in SMALL.items():
        settings[section] = settings.get(section, {}) | values if isinstance(values, dict) else values
    recipe.write_text(yaml.safe_dump(settings))


def run(folder: Path, *arguments: object) -> str:
    """What a command printed. It has to succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # servers.json starts `mcprl`
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": path}
    command = [sys.executable, "-m", "mcprl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def follow_the_guide(folder: Path, files: Sequence[Path], model: Path) -> str:
    """Import, examine, solve, imitate and train. Returns what the import printed."""
    imported = run(folder, "tasks", "import", *files, "--out", "imported/quotes", "--model", model)
    project = folder / "imported" / "quotes"
    recipe = project / "recipe.yaml"
    make_small(recipe)

    findings = json.loads(run(folder, "doctor", recipe, "--fast", "--json"))["findings"]
    found = {each["check"]: each for each in findings}
    assert "fmp_get_quote" in found["recorded"]["measured"]
    assert "send_slack_message" in found["stand-in slack"]["measured"]
    warned = {name for name, each in found.items() if each["severity"] not in ("ok", "skipped")}
    assert warned <= {"forecast"}, "a false alarm, except that a CPU takes long"

    solved = run(folder, "tasks", "validate", project / "tasks.jsonl", "--recipe", recipe, "--gold")
    assert re.search(r"(\d+) of \1 solutions score 1\.0", solved), solved

    # What the tiny model says is worth neither an evaluation nor many tokens.
    run(folder, "sft", recipe, "--set", "tasks.validation=null")
    adapter = folder / "outputs" / "quotes-sft" / "adapter"
    run(folder, "train", recipe, "--set", f"model.adapter={adapter}", "--set", "sampling.max_tokens=8")
    (imitated,), (trained,) = (
        (folder / "outputs" / name / "metrics.jsonl").read_text().splitlines() for name in ("quotes-sft", "quotes")
    )
    assert json.loads(imitated)["imitation_loss"] > 0
    assert json.loads(trained)["episodes"] == 2
    return imported


def test_the_example_goes_through_the_guide(tmp_path, tiny_qwen3):
    printed = follow_the_guide(tmp_path, [EXAMPLE], tiny_qwen3)
    assert "9 rows: 7 usable, 7 with proven checks" in printed


@pytest.mark.full
def test_the_users_files_go_through_the_guide(tmp_path, tiny_qwen3):
    files = sorted(DATA.glob("*.json"))
    if not files:
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    printed = follow_the_guide(tmp_path, files, tiny_qwen3)
    assert "132 rows: 76 usable, 65 with proven checks" in printed
