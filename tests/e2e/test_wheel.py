"""The built wheels in an environment of their own: what they install trains the hello recipe for one update.

The whole quickstart, timed, is tests/e2e/test_quickstart.py, which `scripts/promises --full` runs.
"""
# R8, R9, R14, R22, R23, R25

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcprl.recipe import load_recipe
from mcprl.runs.trajectories import read_trajectories
from newcomer.place import build_wheels, make_place

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

DEADLINE_S = 1500  # only a hang takes so long
GROUP = 2


@dataclass(frozen=True)
class Trained:
    """A run of the wheel: where it is, and what it printed."""

    folder: Path
    printed: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "outputs" / "hello-cpu" / "summary.json").read_text())


@pytest.fixture(scope="module")
def trained(smollm2, time_server, tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("wheel")
    environment = make_place(folder, build_wheels(folder / "dist"))
    command = ["mcprl", "train", "recipes/hello-cpu.yaml", "--set", "training.steps=1"]
    command += ["--set", f"episodes.group_size={GROUP}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return Trained(folder, done.stdout)


def test_the_wheel_trains_an_adapter_from_whole_groups_over_both_servers(trained):
    config = load_recipe(trained.folder / "recipes" / "hello-cpu.yaml")
    run = trained.folder / "outputs" / "hello-cpu"
    assert trained.summary["updates"] == 1
    assert trained.summary["groups_complete"] == config.training.tasks_per_step
    assert (run / "adapter" / "adapter_model.safetensors").exists()
    trajectories = read_trajectories(run / "trajectories" / "step-00000.parquet")
    assert len(trajectories) == GROUP * config.training.tasks_per_step
    servers = {seen.server for t in trajectories for turn in t.turns for seen in turn.observations}
    assert {"time", "directory"} <= servers


def test_every_token_it_learns_from_is_the_token_that_was_sampled(trained, record_property):
    for name in ("alignment", "parity_ratio_mean_abs_error", "parity_logprob_max_abs_error"):
        record_property(name, trained.summary[name])
    assert trained.summary["alignment"] == 1.0
    assert trained.summary["parity_ratio_mean_abs_error"] <= 1e-4
    assert trained.summary["parity_logprob_max_abs_error"] <= 1e-3


def test_it_says_what_a_person_wants_to_know(trained):
    (first,) = [line for line in trained.printed.splitlines() if line.startswith("step 1/")]
    for column in ("reward", "valid calls", "KL", "ratio", "tokens/s"):
        assert column in first
    assert "Next: mcprl try outputs/hello-cpu/config.yaml --adapter outputs/hello-cpu/adapter" in trained.printed
