"""What an evaluation plays, and what counts as solved: a file of tasks, or a benchmark with its own judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, cast

from mcprl.config import RunConfig
from mcprl.episodes import succeeded
from mcprl.errors import BadValueError
from mcprl.records import Task, Trajectory
from mcprl.suggestions import did_you_mean

__all__ = ["SUITES", "Judged", "Suite", "TaskSuite", "named_suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Whether an episode solved its task, and where a suite knows better than its record, why not.

    `failure` is the suite's own name of what went wrong, such as "wrong state"; None leaves it to
    `mcprl.evaluation.outcomes`, which names the failure by what the trajectory shows.

    Judged(success=False, failure="wrong state")
    """

    success: bool
    failure: str | None = None


class Suite(Protocol):
    """Tasks with a judge. A benchmark implements it; `TaskSuite` is that of a plain task file."""

    @property
    def name(self) -> str:
        """What `--suite` calls it; also part of the names of folders."""
        ...

    def adapt(self, config: RunConfig) -> RunConfig:
        """The configuration with the servers and limits that the suite needs. Model and sampling stay the user's.

        Where there is no recipe, `config` names no usable servers and no usable task file: the suite replaces both.
        """
        ...

    def tasks(self) -> Sequence[Task]:
        """All tasks, in an order that does not change. Whoever evaluates may play a sample of them."""
        ...

    def category(self, task: Task) -> str:
        """What results are broken down by: the difficulty, or a benchmark's own category."""
        ...

    async def judge(self, task: Task, trajectory: Trajectory) -> Judged:
        """Whether the finished episode solved its task. Called once for each episode, several at the same time."""
        ...


class TaskSuite:
    """The tasks of a file: solved where what their goal checks came out right."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        self.name = name
        self._tasks = tuple(tasks)

    def adapt(self, config: RunConfig) -> RunConfig:
        return config

    def tasks(self) -> Sequence[Task]:
        return self._tasks

    def category(self, task: Task) -> str:
        return task.difficulty.value

    async def judge(self, task: Task, trajectory: Trajectory) -> Judged:
        return Judged(success=succeeded(trajectory.reward_parts))


SUITES: Final[Mapping[str, str]] = {"bfcl-multi-turn": "mcprl.evaluation.bfcl"}
"""Suites that come with mcprl: each with the module whose `make_suite()` gives it, imported when it is asked for."""


def named_suite(name: str) -> Suite:
    """The suite of that name. Raises BadValueError where there is none."""
    if name not in SUITES:
        raise BadValueError(
            f"there is no suite {name!r}{did_you_mean(name, SUITES)}", fix=f"take one of {', '.join(SUITES)}"
        )
    make = cast("Callable[[], Suite]", import_module(SUITES[name]).make_suite)
    return make()
