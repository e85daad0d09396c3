"""Whole groups under asyncio: every member of every task at once, up to a limit, those lost run again.

A group is handed on only when it has all its members. An attempt that the infrastructure failed leaves nothing but a
`LostEpisode`: not a reward of 0, not a smaller group. If an episode is lost `episodes.max_attempts` times, the
run stops. An episode counts as finished once it is in the journal, and one that the journal already has is not played
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig
from mcprl.episodes.attempts import lost_to, run_until_kept
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
        """A whole group for each task, in the order of `tasks`. `on_finished` hears of each attempt as it ends.

        Raises GroupIncompleteError if an episode is lost `episodes.max_attempts` times.
        """
        kept: dict[str, list[Trajectory]] = {}
        if self._journal is not None:
            finished = await asyncio.to_thread(self._journal.finished, step)
            for (task_id, _), trajectory in finished.items():
                kept.setdefault(task_id, []).append(trajectory)
        groups = (self._collect_group(task, step, kept.get(task.id, []), on_finished) for task in tasks)
        return tuple(await run_all(groups))

    async def drain(self) -> None:
        """Start no further episode; return when those alive have ended. Whoever waits for groups waits for ever."""
        self._draining = True
        await self._none_alive.wait()

    async def _collect_group(self, task: Task, step: int, kept: Sequence[Trajectory], on_finished: OnFinished) -> Group:
        """The first members to end make the group, those kept before among them; what else is under way is ended.

        A member that is lost has ended too, and is waited for: a spare must not take the place of one that failed.
        """
        size = self._config.group_size
        done, lost = {trajectory.member: trajectory for trajectory in kept[:size]}, list[LostEpisode]()
        chosen = list(done)
        for trajectory in done.values():
            on_finished(trajectory)

        def choose(outcome: Trajectory | LostEpisode) -> None:
            if isinstance(outcome, LostEpisode):
                lost.append(outcome)
            if outcome.member not in chosen and len(chosen) < size:
                chosen.append(outcome.member)
            on_finished(outcome)

        missing = [member for member in range(size + self._config.spares) if member not in done]
        under_way = {
            asyncio.create_task(self._collect_member(task, step, member, choose))
            for member in (missing if len(done) < size else ())
        }
        try:
            while len(chosen) < size or not done.keys() >= set(chosen):
                ended, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for outcome in await asyncio.gather(*ended, return_exceptions=True):
                    if isinstance(outcome, BaseException):
                        raise outcome
                    done[outcome.member] = outcome
        finally:
            for one in under_way:
                one.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        return Group(task=task, trajectories=tuple(done[member] for member in sorted(chosen)), lost=tuple(lost))

    async def _collect_member(self, task: Task, step: int, member: int, on_ended: OnFinished) -> Trajectory:
        async def attempt(number: int) -> Trajectory | LostEpisode:
            outcome = await self._attempt(task, step, member, number)
            on_ended(outcome)
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
                return lost_to(error, task, member, attempt)
            else:
                if self._journal is not None:
                    await self._journal.add(trajectory)
                return trajectory
            finally:
                self._alive -= 1
                if not self._alive:
                    self._none_alive.set()
