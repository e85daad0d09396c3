"""Whether tasks can be scored at all, asked before a step is spent on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from mcprl.config import RewardsConfig
from mcprl.episodes.checks import why_unusable
from mcprl.episodes.rewards import score, weigh
from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import ExpectedText, Goal
from mcprl.records import Task

__all__ = ["require_judge", "require_scorable"]

_logger = logging.getLogger(__name__)


def require_scorable(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Stop here where a task's goal cannot be judged, or where nothing that it checks has a weight."""
    for task in tasks:
        for expected in _expected_texts(task.goal):
            problem = why_unusable(expected)
            if problem is not None:
                raise TaskFileError(f"task {task.id}: {problem}", fix="correct the task's goal")
    require_judge(tasks, rewards)
    for task in tasks:
        grade = 0.0 if rewards.judge is not None else None
        try:
            weigh(score(task.goal, (), None, None, weights=rewards, grade=grade), rewards)
        except BadValueError as error:
            raise BadValueError(f"task {task.id}: {error.what}", fix=error.fix) from error


def require_judge(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Without a judge a rubric is not graded: warn, and stop where it is all that a task checks."""
    if rewards.judge is not None:
        return
    with_rubric = [task for task in tasks if task.goal.rubric is not None]
    for task in with_rubric:
        goal = task.goal
        if goal.answer is None and not (goal.calls or goal.min_calls or goal.state):
            raise BadValueError(
                f"task {task.id} is checked by its rubric alone, and rewards.judge is not set",
                fix="set rewards.judge to an endpoint that grades, or give the task an answer, calls or a state",
            )
    if with_rubric:
        _logger.warning(
            "%d of %d tasks have a rubric (%s first), but rewards.judge is not set: it is left out of their rewards",
            len(with_rubric),
            len(tasks),
            with_rubric[0].id,
        )


def _expected_texts(goal: Goal) -> Iterator[ExpectedText]:
    if goal.answer is not None:
        yield goal.answer
    for state in goal.state:
        yield from state.texts
