"""Whole groups under asyncio: every member of every task at once, up to a limit, those lost run again.

A group is handed on only when it has all its members. An attempt that the infrastructure failed leaves nothing but a
`LostEpisode`: not a reward of 0, not a smaller group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig
from mcprl.errors import GroupIncompleteError, InfrastructureError
from mcprl.records import Group, LostEpisode, Task, Trajectory

__all__ = ["Collector", "RunsEpisodes"]


class RunsEpisodes(Protocol):
    """Anything that can run one episode: in this process, or on a worker elsewhere."""

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory: ...


class Collector:
    """Collects the groups of a step."""

    def __init__(self, runner: RunsEpisodes, config: EpisodesConfig) -> None:
        self._runner = runner
        self._config = config
        self._places = asyncio.Semaphore(config.max_concurrent)

    async def collect(
        self, tasks: Sequence[Task], step: int, on_finished: Callable[[Trajectory | LostEpisode], None]
    ) -> tuple[Group, ...]:
        """A whole group for each task, in the order of `tasks`. `on_finished` hears of each attempt as it ends."""
        return await run_all(self._collect_group(task, step, on_finished) for task in tasks)

    async def _collect_group(
        self, task: Task, step: int, on_finished: Callable[[Trajectory | LostEpisode], None]
    ) -> Group:
        lost: list[LostEpisode] = []

        async def collect_member(member: int) -> Trajectory:
            for attempt in range(self._config.max_attempts):
                outcome = await self._attempt(task, step, member, attempt)
                on_finished(outcome)
                if isinstance(outcome, Trajectory):
                    return outcome
                lost.append(outcome)
            raise GroupIncompleteError(
                f"episode {member} of task {task.id} was lost {self._config.max_attempts} times, "
                f"last to {lost[-1].code} {lost[-1].reason}",
                fix="mend that cause; episodes.max_attempts sets how often an episode is run again",
            )

        members = await run_all(collect_member(member) for member in range(self._config.group_size))
        return Group(task=task, trajectories=members, lost=tuple(lost))

    async def _attempt(self, task: Task, step: int, member: int, attempt: int) -> Trajectory | LostEpisode:
        async with self._places:
            try:
                return await self._runner.run(task, step=step, member=member, attempt=attempt)
            except InfrastructureError as error:
                return LostEpisode(task_id=task.id, member=member, attempt=attempt, code=error.code, reason=error.what)
