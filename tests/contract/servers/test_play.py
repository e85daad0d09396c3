"""A person plays a task in the terminal: real servers behind it, keystrokes in, the reward breakdown out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mcprl_market
from mcprl.cli import main
from mcprl.records import Task
from mcprl.tasks import load_tasks

pytestmark = pytest.mark.process

MARKET = Path(mcprl_market.__file__).parent / "data"
RECIPE = """
name: play
model: {path: nowhere}
tasks: {train: tasks.jsonl}
servers: {file: servers.json}
episodes: {max_turns: {easy: 2}}
"""


def keys(typed: list[str]) -> str:
    return "".join(f"{line}\n" for line in typed)


@pytest.fixture
def play(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`mcprl play` in this process, which has imported already what a new one would import for seconds."""

    def run(*arguments: str, typed: list[str]) -> subprocess.CompletedProcess[str]:
        command = ["mcprl", "play", *arguments]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.setattr(sys, "stdin", io.StringIO(keys(typed)))
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(command, ended.value.code or 0, *capsys.readouterr())

    return run


def typed_solution(task: Task) -> list[str]:
    assert task.solution is not None
    calls = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in task.solution.calls]
    return [*calls, f"answer {task.solution.answer}"]


@pytest.fixture
def recipe(tmp_path) -> Path:
    """Two turns with the small directory server."""
    task = {
        "id": "where",
        "prompt": "Where is Ana?",
        "difficulty": "easy",
        "tools": ["find_person"],
        "answer": "Lima",
        "calls": [{"tool": "find_person", "arguments": {"name": "Ana"}}],
    }
    entry = {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"directory": entry}}))
    (tmp_path / "play.yaml").write_text(RECIPE)
    return tmp_path / "play.yaml"


def test_a_task_of_the_shipped_market_is_played_to_a_full_reward_from_a_shell():
    tasks = load_tasks(MARKET / "train.jsonl")
    task = next(task for task in tasks if task.goal.state and task.solution)
    command = [sys.executable, "-m", "mcprl", "play", task.id]
    typed = keys(typed_solution(task))
    result = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stderr
    assert task.prompt[-1]["content"].split()[0] in result.stdout
    assert "the episode is over: answered" in result.stdout
    assert result.stdout.rstrip().endswith("solved")
    assert "not solved" not in result.stdout
    assert "+1.000" in result.stdout


def test_the_person_sees_prompt_tools_observation_and_the_parts_of_the_reward(play, recipe):
    result = play("--recipe", str(recipe), typed=["find_person name=Ana", "answer She is in Lima."])
    assert result.returncode == 0, result.stderr
    for shown in ("Where is Ana?", "find_person", "Ana: Lima, America/Lima", "reward for this turn", "efficiency"):
        assert shown in result.stdout
    assert result.stdout.rstrip().endswith("solved")


def test_the_person_talks_with_a_user_who_offers_more_tools(play, recipe):
    task = json.loads((recipe.parent / "tasks.jsonl").read_text())
    task["setup"] = [{"tool": "list_people", "arguments": {"city": "Lima"}}]
    task["follow_ups"] = [{"prompt": "Who else is there?", "tools": ["list_people"]}]
    (recipe.parent / "tasks.jsonl").write_text(json.dumps(task))
    typed = ["list_people city=Lima", "find_person name=Ana", "answer Lima", "list_people city=Lima", "answer Lima"]
    result = play("--recipe", str(recipe), typed=typed)
    assert "there is no tool 'list_people'" in result.stdout
    assert "user: Who else is there?" in result.stdout
    assert "the episode is over: answered" in result.stdout


def test_the_person_talks_with_a_simulated_user(play, recipe):
    task = json.loads((recipe.parent / "tasks.jsonl").read_text()) | {"user": "users.py:f"}
    (recipe.parent / "tasks.jsonl").write_text(json.dumps(task))
    (recipe.parent / "users.py").write_text("def f(episode):\n    return None if episode.calls else 'Look it up.'\n")
    result = play("--recipe", str(recipe), typed=["answer Oslo", "find_person name=Ana", "answer Lima"])
    assert "user: Look it up." in result.stdout
    assert result.stdout.rstrip().endswith("\nsolved")


def test_a_typing_mistake_costs_no_turn_and_a_wrong_call_costs_one(play, recipe):
    typed = ["find_persn name=Ana", "find_person who=Ana", "find_person name=Ana", "answer Lima"]
    result = play("--recipe", str(recipe), typed=typed)
    assert "did you mean 'find_person'" in result.stdout
    assert "the episode is over: turn limit" in result.stdout
    assert result.stdout.rstrip().endswith("not solved")


def test_questions_are_answered_and_leaving_shows_what_was_reached(play, recipe):
    result = play("--recipe", str(recipe), typed=["tools", "schema find_person", "solution"])
    assert result.returncode == 0, result.stderr
    assert '"required"' in result.stdout
    assert "contains no solution" in result.stdout
    assert "not solved" in result.stdout


def test_a_task_of_another_world_is_refused(play, recipe):
    lines = (MARKET / "train.jsonl").read_text().splitlines()
    task = next(json.loads(line) for line in lines if '"fmp_get_quote"' in line)
    task["tools"], task["calls"], task["state"] = ["find_person"], [], []
    (recipe.parent / "tasks.jsonl").write_text(json.dumps(task))
    result = play("--recipe", str(recipe), typed=["quit"])
    assert result.returncode == 2
    assert "E-TASK-002" in result.stderr
    assert "provides no offline world" in result.stderr


def test_an_unknown_task_is_refused_with_the_nearest_one(play):
    result = play("train-post-price-0001", typed=[])
    assert result.returncode == 2
    assert "did you mean 'train-post-price-001'" in result.stderr
