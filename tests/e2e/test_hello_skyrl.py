"""`mcprl train recipes/hello-skyrl.yaml`: SkyRL's real server and two MCP servers; it or the trainer is killed."""
# R24

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from commands import ended, has_an_episode, start, wait_for

from crashing.evidence import all_trajectories, recorded_twice
from mcprl.recipe import load_recipe

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]

STEPS = 3


@pytest.fixture
def begun(root, skyrl_python, taught_qwen3, time_server, tmp_path, monkeypatch) -> subprocess.Popen[str]:
    """The run, a few steps long, in its second step, with an episode of that finished."""
    # The recipe names the server of mcprl as a user does, whose environment is active.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    settings = (f"training.steps={STEPS}", f"training.outputs={tmp_path}")
    process = start("train", root / "recipes/hello-skyrl.yaml", *(w for s in settings for w in ("--set", s)))
    wait_for(lambda: has_an_episode(tmp_path / "hello-skyrl/journal/step-00001.jsonl"), process)
    return process


def server_processes(trainer: subprocess.Popen[str]) -> list[psutil.Process]:
    """The server's own process, among all that the trainer started, and the engine that it has started."""
    below = psutil.Process(trainer.pid).children(recursive=True)
    (api,) = [child for child in below if "api" in child.cmdline() and any("serve.py" in w for w in child.cmdline())]
    return [api, *api.children(recursive=True)]


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=60)
    assert left == []


def require_a_whole_account(run: Path, root: Path) -> None:
    """Each episode of each step once, drawn by the weights that the step before left, and all of it in the summary."""
    config = load_recipe(root / "recipes" / "hello-skyrl.yaml")
    trajectories = all_trajectories(run)
    a_step = config.training.tasks_per_step * config.episodes.group_size
    assert Counter(t.step for t in trajectories) == dict.fromkeys(range(STEPS), a_step)
    assert recorded_twice(run) == []
    assert {seen.server for t in trajectories for turn in t.turns for seen in turn.observations} >= {
        "directory",
        "time",
    }
    for trajectory in trajectories:
        assert {v for v in trajectory.weights_version if v >= 0} == {trajectory.step}
    metrics = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == list(range(STEPS))
    # What was trained is what was sampled from, also where the server is another than at the start.
    assert all(line["parity_logprob_mean_abs_error"] <= config.learner.max_parity_error for line in metrics)
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    assert summary["updates"] == STEPS
    assert summary["groups_complete"] == STEPS * config.training.tasks_per_step


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.full
def test_a_run_whose_trainer_and_then_whose_server_is_killed_has_a_whole_account(begun, root, tmp_path):
    run = tmp_path / "hello-skyrl"
    server = server_processes(begun)
    begun.kill()
    status, _ = ended(begun)
    assert status == -signal.SIGKILL
    assert not (run / "summary.json").exists()
    wait_until_gone(server)  # the trainer took them along
    journaled = (run / "journal" / "step-00001.jsonl").read_text().splitlines(keepends=True)
    took = [float(re.search(r'"duration_s": ([\d.e-]+)', line)[1]) for line in journaled if line.endswith("\n")]
    assert took

    resumed = start("resume", run)
    wait_for(lambda: has_an_episode(run / "journal/step-00002.jsonl"), resumed)
    server = server_processes(resumed)
    server[0].kill()
    wait_until_gone(server)  # and the run goes on by itself, with another
    status, said = ended(resumed)
    assert status == 0, said
    assert f"1 of {STEPS} done" in said
    require_a_whole_account(run, root)
    # Those that were finished before the trainer was killed were not played again.
    assert set(took) <= {t.duration_s for t in all_trajectories(run) if t.step == 1}
