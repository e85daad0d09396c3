"""The small recipe, with its servers running once for all tests here that play on it."""

from __future__ import annotations

import pytest
from small_recipes import task_line, write_recipe

from mcprl_skyrl_gym import close_stages

TASKS = (
    task_line("greet"),
    task_line("note", calls=[{"tool": "note", "arguments": {"text": "tea"}}]),
    task_line("crash", calls=[{"tool": "note"}, {"tool": "crash"}]),
    task_line("hang", tools=["hang"]),
)


@pytest.fixture(scope="session")
def recipe(tiny_qwen3, tmp_path_factory):
    yield write_recipe(tmp_path_factory.mktemp("recipe"), tiny_qwen3, TASKS)
    close_stages()


@pytest.fixture(scope="session")
def tasks():
    """The lines of the recipe's tasks, by id."""
    return {task["id"]: task for task in TASKS}
