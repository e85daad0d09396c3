"""The example with code of the user's own: its solutions are right, and its functions can train."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from staged_episodes import made_trajectory

from mcprl.episodes import play, play_gold
from mcprl.episodes.reward_functions import RewardFunctions, code_of
from mcprl.learning.algorithms.batches import require_sound_advantages
from mcprl.learning.algorithms.objective import require_sound_loss
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
from mcprl.tools import Toolbox

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_code"


@pytest.mark.process
async def test_the_solutions_of_the_example_earn_everything_and_another_zone_fails_its_check(directory_spec, tmp_path):
    config = load_recipe(EXAMPLE / "recipe.yaml")
    tasks, rewards = load_tasks(config.tasks.train), config.rewards
    code = code_of(rewards, tasks)
    async with (
        Toolbox([directory_spec], log_dir=tmp_path) as toolbox,
        RewardFunctions(rewards.functions, environment=os.environ, log=tmp_path / "log", code=code) as functions,
    ):
        gold = await play_gold(tasks, toolbox, rewards, functions=functions)
        wrong = await play(tasks[0], toolbox, (), "Europe/Oslo", rewards, functions=functions)
        members = [
            replace(made_trajectory(tasks[0].id, number, turns=gold[0].turns, parts=gold[0].parts), answer=answer)
            for number, answer in enumerate(("America/Lima", "It is America/Lima."))
        ]
        graded = await functions.grade_group(tasks[0], members, rewards)
    assert [(trial.success, trial.parts["check"], trial.parts["one_call"]) for trial in gold] == [(True, 1.0, 1.0)] * 2
    assert (wrong.success, wrong.parts["check"]) == (False, 0.0)
    assert [trajectory.reward_parts["brief"] for trajectory in graded] == [1.0, 0.0]


def test_the_loss_and_the_advantages_of_the_example_can_train():
    algorithm = load_recipe(EXAMPLE / "recipe.yaml").algorithm
    require_sound_loss(algorithm)
    require_sound_advantages(algorithm)
