"""Runs every task on the real server, without a model. Solutions must earn the full reward, idle episodes nothing."""

import asyncio
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from make_tasks import TASKS, task_files

from mcprl.episodes import Trial, play, play_gold
from mcprl.recipe import load_recipe
from mcprl.records import Task
from mcprl.tasks import load_tasks
from mcprl.tools import open_toolbox

CONFIG = load_recipe(Path(__file__).resolve().parent / "recipe.yaml")


async def play_all(tasks: Sequence[Task]) -> tuple[tuple[Trial, ...], list[Trial]]:
    """Run the solution of each task, and for each task an episode without calls and with an empty answer."""
    with tempfile.TemporaryDirectory() as logs:
        async with open_toolbox(CONFIG.servers, log_dir=Path(logs)) as toolbox:
            solved = await play_gold(tasks, toolbox, CONFIG.rewards, episodes=CONFIG.episodes)
            idle = [await play(task, toolbox, (), "", CONFIG.rewards, episodes=CONFIG.episodes) for task in tasks]
            return solved, idle


def shown(what: str, trial: Trial) -> str:
    """Describe a trial: its reward, the parts of the reward, and what the tools returned."""
    results = [f"{seen.tool} returned: {seen.text}" for turn in trial.turns for seen in turn.observations]
    return "\n    ".join([f"{what} earns {trial.reward}: {dict(trial.parts)}", *results])


class Project(unittest.TestCase):
    def test_a_solution_earns_everything_and_doing_nothing_earns_nothing(self) -> None:
        tasks = [task for file in sorted(TASKS.glob("*.jsonl")) for task in load_tasks(file)]
        assert tasks, f"there is no task file in {TASKS}"
        solved, idle = asyncio.run(play_all(tasks))
        wrong = [shown(f"the solution of {trial.task_id}", trial) for trial in solved if trial.reward != 1]
        wrong += [shown(f"doing nothing in {trial.task_id}", trial) for trial in idle if trial.reward != 0]
        assert not wrong, "\n" + "\n".join(wrong)

    def test_the_task_files_are_as_make_tasks_writes_them(self) -> None:
        files = {TASKS / name: text for name, text in task_files().items()}
        old = [path.name for path, text in files.items() if path.exists() and path.read_text() != text]
        assert not old, f"out of date: {old}; run python make_tasks.py"


if __name__ == "__main__":
    unittest.main()
