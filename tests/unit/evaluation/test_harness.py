"""Playing an evaluation: what the infrastructure fails is played again and counted, and never scored."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from made_evaluations import make_trajectory, said
from mcprl.config import EpisodesConfig
from mcprl.errors import BadValueError, GroupIncompleteError, ServerLostError
from mcprl.evaluation.harness import Player, choose_tasks, fingerprint
from mcprl.evaluation.outcomes import TaskSuite, named_suite
from mcprl.goals import Contains, Exactly, Goal
from mcprl.records import LostEpisode, Task

PROMPT = ({"role": "user", "content": "?"},)


def a_task(name: str, **changes) -> Task:
    return dataclasses.replace(Task(id=name, prompt=PROMPT, goal=Goal(answer=Contains(text="Lima"))), **changes)


class Listener:
    """Keeps the attempts that ended."""

    def __init__(self) -> None:
        self.ended = []

    def stage(self, text) -> None: ...

    def episode_finished(self, step, outcome) -> None:
        self.ended.append(outcome)

    def step_finished(self, step, metrics, verdicts) -> None: ...


class Runner:
    """Loses the first attempts of each episode; counts how many are alive at once."""

    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.alive = self.most_alive = 0

    async def run(self, task, *, step, member, attempt):
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        await asyncio.sleep(0)
        self.alive -= 1
        if attempt < self.lost:
            raise ServerLostError("server 'time' went away", fix="start it")
        solved = {"answer": float(member == 0)}
        return dataclasses.replace(make_trajectory(said("Lima"), member=member, parts=solved), attempt=attempt)


async def test_a_lost_episode_is_played_again_and_is_in_no_figure():
    suite, listener = TaskSuite("mine", [a_task("a")]), Listener()
    player = Player(Runner(lost=2), EpisodesConfig(max_concurrent=2), suite, listener)
    played = await player.play(a_task("a"), 3)
    assert [outcome.success for _, outcome in played] == [True, False, False]
    assert [trajectory.attempt for trajectory, _ in played] == [2, 2, 2]
    assert player.lost == {"E-TOOL-011": 6}
    assert sum(isinstance(outcome, LostEpisode) for outcome in listener.ended) == 6


async def test_an_episode_that_keeps_being_lost_ends_the_evaluation_with_its_cause():
    player = Player(Runner(lost=9), EpisodesConfig(), TaskSuite("mine", []), Listener())
    with pytest.raises(
        GroupIncompleteError, match=r"was lost 5 times, most recently to E-TOOL-011 server 'time' went away"
    ):
        await player.play(a_task("a"), 1)


async def test_no_more_episodes_are_alive_than_the_recipe_says():
    runner = Runner(lost=0)
    await Player(runner, EpisodesConfig(max_concurrent=3), TaskSuite("mine", []), Listener()).play(a_task("a"), 12)
    assert runner.most_alive == 3


def test_a_sample_of_tasks_depends_on_the_seed_and_keeps_their_order():
    tasks = [a_task(str(n)) for n in range(50)]
    drawn = choose_tasks(tasks, 10, seed=3)
    assert drawn == choose_tasks(tasks, 10, seed=3) != choose_tasks(tasks, 10, seed=4)
    assert [int(task.id) for task in drawn] == sorted(int(task.id) for task in drawn)
    assert choose_tasks(tasks, 80, seed=3) == choose_tasks(tasks, None, seed=3) == tuple(tasks)
    with pytest.raises(BadValueError, match="no tasks to evaluate"):
        choose_tasks([], None, seed=0)


def test_a_fingerprint_tells_tasks_apart_that_check_differently():
    contains, exactly = a_task("a"), a_task("a", goal=Goal(answer=Exactly(text="Lima")))
    assert fingerprint(contains) == fingerprint(a_task("a")) != fingerprint(exactly)


def test_a_suite_that_does_not_exist_is_refused_with_a_near_one():
    with pytest.raises(BadValueError, match=r"unknown suite 'bfcl-multiturn' \(did you mean 'bfcl-multi-turn'\?\)"):
        named_suite("bfcl-multiturn")
