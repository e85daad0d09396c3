"""The run's side of its workers: who plays which episode, what waits, and what becomes of the episodes of the dead.

An episode goes to the worker that plays the fewest, each of which has a limit; the rest wait here. The episodes of a
worker that died are played by the others at once, from their beginning and under the same name: only one of their
plays ever ends here. A seat whose worker died gets another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from mcprl.concurrency import run_all
from mcprl.episodes.worker_letters import Figures, Link
from mcprl.episodes.worker_line import Job, Line
from mcprl.errors import ConfigurationError, InfrastructureError, McprlError, WorkerLostError
from mcprl.records import Task, Trajectory
from mcprl.samplers import Sampler
from mcprl.tools.limits import Desk
from mcprl.tools.stats import merge_stats

__all__ = ["Crew"]

_logger = logging.getLogger(__name__)

_MOST_DEATHS = 5  # of workers under one episode
_MOST_LIVES = 5  # of workers in one seat, with no episode ended by anyone meanwhile
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 10.0

Hire = Callable[[int], Awaitable[Link]]
"""Starts the worker of a seat. Raises what is wrong with it, as it is."""


@dataclass(slots=True, eq=False)
class _Seat:
    """A worker's place in the crew, through all its lives."""

    number: int
    line: Line | None = None
    failures: int = 0
    has_given_up: bool = False
    progress: asyncio.Event = field(default_factory=asyncio.Event)


class Crew:
    """Runs episodes on workers. Entering starts all of them; leaving ends them.

    `most` is how many episodes one worker plays at a time. Several workers that start again are spread in time by
    `pause`, which tests replace.
    """

    def __init__(
        self,
        hire: Hire,
        *,
        sampler: Sampler,
        desk: Desk,
        count: int,
        most: int,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.restarts = 0
        """How often a worker was replaced."""
        self._hire = hire
        self._sampler = sampler
        self._desk = desk
        self._most = most
        self._pause = pause
        self._seats = [_Seat(number) for number in range(count)]
        self._waiting: deque[Job] = deque()
        self._keepers: list[asyncio.Task[None]] = []
        self._failure: McprlError | None = None
        self._past: Figures | None = None  # the last words of those that died, added up

    async def __aenter__(self) -> Self:
        try:
            await run_all(self._seat(seat) for seat in self._seats)
        except BaseException:
            await self._close_links()
            raise
        self._keepers = [asyncio.create_task(self._keep(seat)) for seat in self._seats]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._fail(self._failure or WorkerLostError("the workers are being ended", fix="none is needed"))
        # The lines stay open meanwhile: a worker may have something to give back.
        await self._close_links()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    @property
    def figures(self) -> list[Figures]:
        """What the tool servers of all workers did, those of dead workers up to their last words."""
        lines = (seat.line for seat in self._seats if seat.line is not None)
        told = [self._past, *(line.figures for line in lines)]
        return [each for each in told if each is not None]

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        """One episode, on whichever worker. Raises what it raised there.

        Raises WorkerLostError where one worker after the other died under it, or where none can be started any more.
        """
        if self._failure is not None:
            raise self._failure
        job = Job(task, step, member, attempt, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._hand_out()
        try:
            return await job.outcome
        finally:
            if job.line is not None:
                job.line.stop(job)

    def _hand_out(self) -> None:
        """Give what waits to workers that have room, the idlest first."""
        while self._waiting:
            lines = [seat.line for seat in self._seats if seat.line is not None]
            line = min(lines, key=lambda each: len(each.playing), default=None)
            if line is None or len(line.playing) >= self._most:
                return
            job = self._waiting.popleft()
            if not job.outcome.done():
                line.play(job)

    def _on_free(self) -> None:
        """An episode has ended: so workers do start and play, and failures before it were no rule."""
        for seat in self._seats:
            seat.failures = 0
            seat.has_given_up = False
            seat.progress.set()
        self._hand_out()

    async def _seat(self, seat: _Seat) -> None:
        link = await self._hire(seat.number)
        seat.line = Line(link, self._sampler, self._desk, self._on_free)
        self._hand_out()

    async def _keep(self, seat: _Seat) -> None:
        """Keep a seat taken, whoever dies on it."""
        while self._failure is None:
            assert seat.line is not None
            try:
                await seat.line.serve()
            except WorkerLostError as error:
                if self._failure is not None:
                    return  # it was ended
                _logger.warning("worker %d is replaced: %s", seat.number, error)
                seat.failures += 1
                await self._bury(seat, error)
                await self._replace(seat, error)

    async def _bury(self, seat: _Seat, error: WorkerLostError) -> None:
        """Free the seat, and let others play what its worker was playing."""
        line, seat.line = seat.line, None
        assert line is not None
        self._past = _added(self._past, line.figures)
        for job in reversed(line.playing.values()):
            job.line = None
            job.deaths += 1
            if job.deaths >= _MOST_DEATHS:
                job.fail(_too_many_deaths(job, error))
            elif not job.outcome.done():
                self._waiting.appendleft(job)
        self._hand_out()
        await line.link.close()  # it may only have been out of reach

    async def _replace(self, seat: _Seat, error: McprlError) -> None:
        """Start a worker on an empty seat; later and later where that fails, and no more where nothing else goes on."""
        while seat.line is None and self._failure is None:
            if seat.failures > _MOST_LIVES:
                await self._give_up(seat, error)
                continue
            if seat.failures > 1:
                await self._pause(min(_LONGEST_REST_S, _FIRST_REST_S * 2.0 ** (seat.failures - 2)))
            self.restarts += 1
            try:
                await self._seat(seat)
            except ConfigurationError as wrong:
                self._fail(wrong)
            except InfrastructureError as failed:
                _logger.warning("worker %d did not start: %s", seat.number, failed)
                seat.failures += 1
                error = failed

    async def _give_up(self, seat: _Seat, error: McprlError) -> None:
        """Leave the seat empty until an episode has ended somewhere. Where all seats are empty, none ever will."""
        seat.has_given_up = True
        seat.progress.clear()
        if all(each.has_given_up for each in self._seats):
            self._fail(
                WorkerLostError(
                    f"no worker can be kept alive: each seat lost {_MOST_LIVES} with no episode ended in between, "
                    f"the last to {error.code} {error.what}",
                    fix=error.fix,
                )
            )
            return
        await seat.progress.wait()

    def _fail(self, error: McprlError) -> None:
        """Nothing will be played any more."""
        self._failure = error
        for job in self._all_jobs():
            if job.line is not None:
                job.line.stop(job)
            job.fail(error)
        self._waiting.clear()
        for seat in self._seats:
            seat.progress.set()

    def _all_jobs(self) -> list[Job]:
        playing = [job for seat in self._seats if seat.line is not None for job in seat.line.playing.values()]
        return [*self._waiting, *playing]

    async def _close_links(self) -> None:
        links = [seat.line.link for seat in self._seats if seat.line is not None]
        await run_all(link.close() for link in links)


def _added(past: Figures | None, last: Figures | None) -> Figures | None:
    if past is None or last is None:
        return past or last
    return Figures(merge_stats([past.stats, last.stats]), past.restarts + last.restarts)


def _too_many_deaths(job: Job, error: WorkerLostError) -> WorkerLostError:
    return WorkerLostError(
        f"{job.deaths} workers in a row died while they played episode {job.member} of task {job.task.id}, "
        f"the last of them: {error.what}",
        fix="see the log of that worker and the memory of its node",
    )
