"""Checked before a run: goals that cannot be checked, weights that are all 0, rubrics without a judge."""

from __future__ import annotations

import logging

import pytest
from staged_episodes import make_task

from mcprl.config import JudgeConfig, RewardsConfig
from mcprl.episodes import require_judge, require_scorable
from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import ExpectedCall, ExpectedState, Matches

JUDGED = RewardsConfig(judge=JudgeConfig(url="http://127.0.0.1:1/v1", model="m"))


def test_ordinary_tasks_can_be_scored(caplog):
    require_scorable([make_task(), make_task("b", answer=None, calls=[ExpectedCall(tool="x")])], RewardsConfig())
    assert caplog.records == []


@pytest.mark.parametrize(
    "goal",
    [
        {"answer": Matches(pattern="(?<=a)b")},
        {"answer": None, "state": [ExpectedState(tool="x", texts=(Matches(pattern="(?<=a)b"),))]},
    ],
)
def test_an_expectation_that_cannot_be_judged_stops_the_run(goal):
    with pytest.raises(TaskFileError, match=r"E-TASK-001 task b: .*look-around.*Fix: correct the task's goal"):
        require_scorable([make_task("a"), make_task("b", **goal)], RewardsConfig())


def test_a_goal_all_of_whose_parts_have_no_weight_stops_the_run():
    with pytest.raises(BadValueError, match=r"task b: .*checks only parts with weight 0 \(answer\).*in rewards"):
        require_scorable([make_task("b")], RewardsConfig(answer=0))


def test_a_goal_that_checks_nothing_stops_the_run():
    with pytest.raises(BadValueError, match=r"task b: .*the goal checks nothing.*give the task 'answer'"):
        require_scorable([make_task("b", answer=None)], RewardsConfig())


def test_a_rubric_without_a_judge_is_warned_of_once(caplog):
    tasks = [make_task("a"), make_task("b", rubric="Polite."), make_task("c", rubric="Brief.")]
    with caplog.at_level(logging.WARNING):
        require_scorable(tasks, RewardsConfig())
    [record] = caplog.records
    assert "2 of 3 tasks have a rubric (first: b), but rewards.judge is not set" in record.getMessage()


def test_a_rubric_that_is_all_there_is_needs_a_judge():
    task = make_task("b", answer=None, rubric="Polite.")
    with pytest.raises(BadValueError, match=r"task b is checked only by its rubric, but rewards\.judge is not set"):
        require_judge([task], RewardsConfig())
    require_scorable([task], JUDGED)


def test_with_a_judge_nothing_is_warned_of(caplog):
    require_scorable([make_task("b", rubric="Polite.")], JUDGED)
    assert caplog.records == []
