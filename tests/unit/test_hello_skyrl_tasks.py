"""The tasks of recipes/hello-skyrl.yaml are right, and its model can meet them: it was shown every word of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcprl.records import Task
from mcprl.servers.directory import PEOPLE
from mcprl.tasks import load_tasks

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import taught_qwen3

ROOT = Path(__file__).parents[2]
TASKS = load_tasks(ROOT / "recipes" / "hello-skyrl" / "tasks.jsonl")
ZONES = {person["name"]: person["timezone"] for person in PEOPLE}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_task_wants_the_time_in_the_zone_of_whom_it_asks_about(task: Task):
    name = task.prompt[-1]["content"].removeprefix("What time is it at ").removesuffix("'s office?")
    wanted = [("find_person", {"name": name}), ("get_current_time", {"timezone": ZONES[name]})]
    assert [(call.tool, dict(call.arguments)) for call in task.goal.calls] == wanted
    assert task.tools == ("find_person", "get_current_time")
    assert task.max_turns == 2


def test_the_model_knows_everybody_asked_about_and_eight_time_zones_to_guess_from():
    words = taught_qwen3.words()
    named = {value for task in TASKS for call in task.goal.calls for value in call.arguments.values()}
    assert named <= set(words)
    assert len({zone for zone in ZONES.values() if zone in words}) == len(taught_qwen3.PEOPLE) == 8


def test_in_its_lessons_every_guess_is_made_and_the_right_one_is_as_likely_as_the_term_says():
    people = range(len(taught_qwen3.PEOPLE))
    for _, right in taught_qwen3.TERMS:
        weights = {(i, j, k): taught_qwen3.weight(i, j, k, right) for i in people for j in people for k in people}
        total = sum(weights.values())
        for asked_about in people:
            own = sum(weight for (i, _, _), weight in weights.items() if i == asked_about)
            found = sum(weight for (i, j, _), weight in weights.items() if i == j == asked_about)
            assert own / total == pytest.approx(1 / 8)
            assert found / own == pytest.approx(right / (right + 7))
        assert min(weights.values()) > 0
