"""A learning rate that breaks the policy: health says so at once, and its command leads to a sound policy."""
# R9, R30

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from mcprl.cli import app

pytestmark = pytest.mark.process

PEOPLE = ("Ana", "Bola", "Fatima", "Hiro")
SOUND_RATE = 1e-3


@pytest.fixture
def recipe(taught_qwen3: Path, tmp_path: Path) -> Path:
    """A tiny policy that writes valid calls, and is to learn whom to look up."""
    tasks: list[dict[str, Any]] = [
        {"id": f"at-{name}", "prompt": f"What time is it at {name}'s office?", "tools": ["find_person"], "max_turns": 1}
        | {"calls": [{"tool": "find_person", "arguments": {"name": name}}]}
        for name in PEOPLE
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    server = {"command": "mcprl", "args": ["serve", "directory"]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"directory": server}}))
    settings = {
        "name": "run",
        "model": {"path": str(taught_qwen3), "renderer": "chatml", "dtype": "float32", "context_tokens": 128},
        "tasks": {"train": str(tmp_path / "tasks.jsonl")},
        "servers": {"file": str(tmp_path / "servers.json")},
        "engine": "transformers",
        "sampling": {"max_tokens": 10},
        "episodes": {"group_size": 6},
        "rewards": {"arguments": 1.0, "calls": 0.0, "efficiency": 0.0, "penalty": 0.0},
        "algorithm": {"minibatches": 1, "min_learnable_tokens": 1},
        "learner": {"lora_rank": 4, "learning_rate": SOUND_RATE, "max_parity_error": 1e-4},
        "training": {"steps": 3, "tasks_per_step": 4, "keep_checkpoints": 1, "outputs": str(tmp_path / "outputs")},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def mcprl(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_advice_after_a_learning_rate_that_broke_the_policy_leads_to_a_sound_one(recipe, tmp_path):
    run = tmp_path / "outputs" / "run"
    mcprl("train", recipe)
    before = fmean(line["valid_call_rate"] for line in lines(run / "metrics.jsonl"))
    assert before > 0.9

    mcprl("resume", run, "--set", "training.steps=7", "--set", "learner.learning_rate=1.0")
    metrics, health = lines(run / "metrics.jsonl"), lines(run / "health.jsonl")
    # Update 4 broke it: the episodes of steps 5 to 7 are by broken weights, and none of these steps is called healthy.
    assert max(line["valid_call_rate"] for line in metrics[4:]) < before / 2
    advice = {}
    for verdict in health:
        assert verdict["step"] < 4 or verdict["severity"] != "ok"
        if verdict["step"] >= 4 and (command := re.search(r"`mcprl resume RUN ([^`]+)`", verdict["fix"])):
            advice[verdict["step"]] = command[1]
    assert set(advice) == {4, 5, 6}
    assert set(advice.values()) == {f"--from 3 --set learner.learning_rate={SOUND_RATE:.2g}"}

    mcprl("resume", run, *advice[6].split())
    metrics, health = lines(run / "metrics.jsonl"), lines(run / "health.jsonl")
    assert [line["step"] for line in metrics] == list(range(7))
    assert min(line["valid_call_rate"] for line in metrics) > 0.9
    assert [verdict for verdict in health if verdict["severity"] == "bad"] == []
