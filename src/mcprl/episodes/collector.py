"""Whole groups under asyncio: every member of every task at once, up to a limit, those lost run again.

A group is handed on only when it has all its members. An attempt that the infrastructure failed leaves nothing but a
`LostEpisode`: not a reward of 0, not a smaller group. An episode counts as finished once it is in the journal, and one
that the journal already has is not played again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig
from mcprl.episodes.attempts import run_until_kept
from mcprl.errors import InfrastructureError
from mcprl.records import Group, LostEpisode, Task, Trajectory

__all__ = ["Collector", "Journal", "RunsEpisodes"]

OnFinished = Callable[[Trajectory | LostEpisode], None]


class RunsEpisodes(Protocol):
    """Anything that can run one episode: in this process, or on a worker elsewhere."""

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory: ...


class Journal(Protocol):
    """Keeps finished episodes."""

    async def add(self, trajectory: Trajectory) -> None:
        """Keep an episode. It is safe once this returns."""
        ...

    def finished(self, step: int) -> Mapping[tuple[str, int], Trajectory]:
        """The episodes of a step that were kept before, by task and member, in the order in which they came."""
        ...


class Collector:
    """Collects the groups of a step. Without a journal, nothing is kept."""

    def __init__(self, runner: RunsEpisodes, config: EpisodesConfig, journal: Journal | None = None) -> None:
        self._runner = runner
        self._config = config
        self._journal = journal
        self._places = asyncio.Semaphore(config.max_concurrent)
        self._alive = 0
        self._none_alive = asyncio.Event()
        self._none_alive.set()
        self._draining = False

    async def collect(self, tasks: Sequence[Task], step: int, on_finished: OnFinished) -> tuple[Group, ...]:
        """A whole group for each task, in the order of `tasks`. `on_finished` hears of each attempt as it ends."""
        kept: dict[str, list[Trajectory]] = {}
        if self._journal is not None:
            finished = await asyncio.to_thread(self._journal.finished, step)
            for (task_id, _), trajectory in finished.items():
                kept.setdefault(task_id, []).append(trajectory)
        return await run_all(self._collect_group(task, step, kept.get(task.id, []), on_finished) for task in tasks)

    async def drain(self) -> None:
        """Start no further episode; return when those alive have ended. Whoever waits for groups waits for ever."""
        self._draining = True
        await self._none_alive.wait()

    async def _collect_group(self, task: Task, step: int, kept: Sequence[Trajectory], on_finished: OnFinished) -> Group:
        """The first members to finish make the group, those kept before among them; what else is under way is ended."""
        size = self._config.group_size
        done, lost = list(kept[:size]), list[LostEpisode]()
        for trajectory in done:
            on_finished(trajectory)
        known = {trajectory.member for trajectory in done}
        missing = [member for member in range(size + self._config.spares) if member not in known]
        under_way = {
            asyncio.create_task(self._collect_member(task, step, member, lost, on_finished))
            for member in (missing if len(done) < size else ())
        }
        try:
            while len(done) < size:
                ended, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                done += sorted((one.result() for one in ended), key=_member)
        finally:
            for one in under_way:
                one.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        members = sorted(done[:size], key=_member)
        return Group(task=task, trajectories=tuple(members), lost=tuple(lost))

    async def _collect_member(
        self, task: Task, step: int, member: int, lost: list[LostEpisode], on_finished: OnFinished
    ) -> Trajectory:
        async def attempt(number: int) -> Trajectory | LostEpisode:
            outcome = await self._attempt(task, step, member, number)
            on_finished(outcome)
            if isinstance(outcome, LostEpisode):
                lost.append(outcome)
            return outcome

        return await run_until_kept(f"episode {member} of task {task.id}", self._config.max_attempts, attempt)

    async def _attempt(self, task: Task, step: int, member: int, attempt: int) -> Trajectory | LostEpisode:
        async with self._places:
            if self._draining:
                await asyncio.Event().wait()  # until it is cancelled
            self._alive += 1
            self._none_alive.clear()
            try:
                trajectory = await self._runner.run(task, step=step, member=member, attempt=attempt)
            except InfrastructureError as error:
                return LostEpisode(task_id=task.id, member=member, attempt=attempt, code=error.code, reason=error.what)
            else:
                if self._journal is not None:
                    await self._journal.add(trajectory)
                return trajectory
            finally:
                self._alive -= 1
                if not self._alive:
                    self._none_alive.set()


def _member(trajectory: Trajectory) -> int:
    return trajectory.member
