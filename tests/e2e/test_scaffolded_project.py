"""What `mcprl init` makes, as a user goes on with it: its own test, the doctor, and a step of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_here
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.runs.trajectories import read_trajectories
from mcprl.scaffold import write_project

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

DEADLINE_S = 800  # only a hang takes so long
# A random model earns nothing, so its episodes alone would make no update: what the recipe has it imitate does.
SMALL = (
    "model.renderer=qwen3",
    "model.dtype=float32",
    "engine=transformers",
    "sampling.max_tokens=48",
    "episodes.group_size=2",
    "episodes.max_turns={easy: 2, medium: 3}",
    "algorithm.min_learnable_tokens=1",
    "learner.lora_rank=2",
    "training.steps=1",
    "training.tasks_per_step=2",
)


@pytest.fixture
def project(tmp_path, tiny_qwen3) -> Path:
    """The folder of a new project with a tiny model."""
    write_project(tmp_path / "shop", str(tiny_qwen3))
    return tmp_path / "shop"


@pytest.fixture
def python(project) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python with these arguments in the folder of the project."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return subprocess.run(command, capture_output=True, text=True, cwd=project, env=environment, timeout=DEADLINE_S)

    return run


def test_its_own_test_passes(python):
    done = python("-m", "unittest", "-v")
    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr
    assert "OK" in done.stderr


def test_its_own_test_fails_where_the_server_no_longer_does_what_the_tasks_say(python, tmp_path):
    server = tmp_path / "shop" / "server.py"
    server.write_text(server.read_text().replace("room[item] -= count\n", "room[item] -= 1\n"))
    done = python("-m", "unittest")
    assert done.returncode == 1
    assert "the solution of sell-mugs earns" in done.stderr
    assert "the solution of count-mugs earns" not in done.stderr


def test_its_own_test_passes_without_validation_tasks_and_names_what_is_missing_without_any(python, tmp_path):
    tasks = tmp_path / "shop" / "tasks"
    (tasks / "validation.jsonl").unlink()
    done = python("-m", "unittest")
    assert done.returncode == 0, done.stderr
    (tasks / "train.jsonl").unlink()
    done = python("-m", "unittest")
    assert done.returncode == 1
    assert f"AssertionError: there is no task file in {tasks}" in done.stderr


def test_the_doctor_finds_nothing_wrong_without_a_model(project, monkeypatch):
    monkeypatch.chdir(project)
    done = CliRunner().invoke(app, ["doctor", "recipe.yaml", "--fast", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    findings = json.loads(done.stdout)["findings"]
    assert [f for f in findings if f["severity"] in ("warn", "bad") and "this machine" not in f["measured"]] == []
    measured = {finding["check"]: finding["measured"] for finding in findings}
    assert "lists 3 tools" in measured["server stock"]


def test_it_trains_an_adapter_where_it_said_that_it_would(project, monkeypatch):
    monkeypatch.chdir(project)
    status, said = run_here("train", "recipe.yaml", *(part for setting in SMALL for part in ("--set", setting)))
    assert status == 0, said
    run = project / "outputs" / "shop"
    assert (run / "adapter" / "adapter_model.safetensors").exists()
    assert json.loads((run / "summary.json").read_text())["updates"] == 1
    assert len(read_trajectories(run / "trajectories" / "step-00000.parquet")) == 4
