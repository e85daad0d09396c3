"""The public API is small, and typed from the user's side: a project that uses it passes pyright's strict mode."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from source_files import ROOT

import mcprl

MAX_NAMES = 25
PROJECT = '''
"""Rewards, training and evaluation as a user would write them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcprl
from mcprl.config import EpisodesConfig, ModelConfig, ServersConfig, TasksConfig

RECIPE = mcprl.RunConfig(
    name="mine",
    engine="transformers",
    model=ModelConfig(path="Qwen/Qwen3-0.6B"),
    tasks=TasksConfig(train=Path("tasks.jsonl")),
    servers=ServersConfig(file=Path("servers.json")),
    episodes=EpisodesConfig(group_size=4),
)


def grounded(episode: mcprl.EpisodeView) -> float:
    """Share of the results that the answer quotes."""
    texts = [seen.text for seen in episode.observations if seen.worked]
    return sum(text in (episode.answer or "") for text in texts) / max(len(texts), 1)


async def closed(episode: mcprl.EpisodeView) -> float:
    seen = await episode.probe("list_tickets", status="open")
    return 0.0 if str(episode.task.metadata.get("ticket")) in seen.text else 1.0


async def print_steps(steps: AsyncIterator[mcprl.Step]) -> None:
    async for step in steps:
        print(step.index, step.metrics["reward"], step.verdict, [verdict.fix for verdict in step.verdicts])


async def print_episodes(episodes: AsyncIterator[object]) -> None:
    async for outcome in episodes:
        if isinstance(outcome, mcprl.Trajectory):
            print(outcome.reward, [call.name for turn in outcome.turns for call in turn.calls])


def main() -> dict[str, Any]:
    tasks = mcprl.load_tasks(Path("tasks.jsonl"))
    hard = [task for task in tasks if len(task.goal.calls) > 1]
    config: mcprl.RunConfig = mcprl.load_recipe(Path("recipe.yaml"))
    print(config.model.path, len(hard))
    try:
        summary = mcprl.train(RECIPE, settings=["training.steps=3"], watch=print_steps)
    except mcprl.RunStopped:
        summary = mcprl.resume("outputs/mine")
    except mcprl.InfrastructureError as error:
        print(error.code)
        raise
    evaluation = mcprl.evaluate(RECIPE, adapter=summary.folder / "adapter", episodes=4, watch=print_episodes)
    success: float = evaluation.figures.success.value
    return {**summary.as_dict(), "success": success}
'''


def check(folder, text: str) -> list[str]:
    """The errors that pyright finds in a project with this file."""
    (folder / "project.py").write_text(text)
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "venvPath": str(ROOT), "venv": ".venv"}
    (folder / "pyrightconfig.json").write_text(json.dumps({**settings, "include": ["project.py"]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(folder)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=600).stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    return [each["message"] for each in found["generalDiagnostics"]]


def test_the_public_api_has_few_names():
    assert len(mcprl.__all__) <= MAX_NAMES


@pytest.mark.process
def test_a_project_of_a_user_passes_the_strict_type_checker_and_a_mistake_does_not(tmp_path):
    assert check(tmp_path, PROJECT) == []
    mistaken = check(tmp_path, PROJECT.replace("outcome.reward,", "outcome.rewards,"))
    assert any("rewards" in message for message in mistaken)
