"""The run's end of the line to one worker, from its start to its death: what it plays, what it is being answered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from mcprl.concurrency import run_all
from mcprl.episodes.worker_letters import (
    Answer,
    Ask,
    DeskCall,
    Drop,
    Ended,
    Figures,
    FromWorker,
    Given,
    Link,
    Play,
    Stop,
    ToWorker,
    sendable,
)
from mcprl.records import Task, Trajectory
from mcprl.samplers import Sampler, SampleRequest
from mcprl.tools.limits import Desk

__all__ = ["Job", "Line"]


@dataclass(slots=True, eq=False)
class Job:
    """An episode that somebody waits for. `line` is where it is played, None elsewhere; `deaths` of its workers."""

    task: Task
    step: int
    member: int
    attempt: int
    outcome: asyncio.Future[Trajectory]
    line: Line | None = None
    deaths: int = 0

    def fail(self, error: Exception) -> None:
        self.line = None
        if not self.outcome.done():
            self.outcome.set_exception(error)


@dataclass(slots=True, eq=False)
class Line:
    """Post to and from one worker. `on_free` is called whenever an episode ended and the worker has a place again."""

    link: Link
    sampler: Sampler
    desk: Desk
    on_free: Callable[[], None]
    playing: dict[int, Job] = field(default_factory=dict[int, Job])
    figures: Figures | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _out: list[ToWorker] = field(default_factory=list[ToWorker])
    _has_post: asyncio.Event = field(default_factory=asyncio.Event)
    _answering: dict[int, asyncio.Task[Given]] = field(default_factory=dict[int, "asyncio.Task[Given]"])
    _places: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def play(self, job: Job) -> None:
        """Let the worker play an episode."""
        number = next(self._numbers)
        job.line = self
        self.playing[number] = job
        self._write(Play(number, job.task, job.step, job.member, job.attempt))

    def stop(self, job: Job) -> None:
        """Nobody wants it any more. Its place is free when the worker says so."""
        job.line = None
        self._write(*(Stop(number) for number, each in self.playing.items() if each is job))

    async def serve(self) -> None:
        """Carry letters until the worker is lost; raises the WorkerLostError. Nothing of it arrives afterwards."""
        try:
            await run_all([self._send(), self._receive()])
        finally:
            for task in self._answering.values():
                task.cancel()
            await asyncio.gather(*self._answering.values(), return_exceptions=True)
            # What was on its way to a server has arrived there or never will.
            for server, ticket in self._places:
                await self.desk.free_place(server, ticket)

    def _write(self, *letters: ToWorker) -> None:
        self._out += letters
        self._has_post.set()

    async def _send(self) -> None:
        while True:
            await self._has_post.wait()
            self._has_post.clear()
            letters, self._out = self._out, []
            await self.link.send(letters)

    async def _receive(self) -> None:
        while True:
            for letter in await self.link.receive():
                self._hear(letter)

    def _hear(self, letter: FromWorker) -> None:
        match letter:
            case Ask():
                task = asyncio.ensure_future(self._answer(letter.what))
                self._answering[letter.number] = task
                task.add_done_callback(lambda done: self._reply(letter.number, done))
            case Drop():
                if letter.number in self._answering:
                    self._answering[letter.number].cancel()
            case Figures():
                self.figures = letter
            case Ended():
                self._end(letter)

    def _end(self, letter: Ended) -> None:
        job = self.playing.pop(letter.number)
        job.line = None
        if not job.outcome.done():
            if letter.trajectory is not None:
                job.outcome.set_result(letter.trajectory)
            elif letter.error is not None:
                job.outcome.set_exception(letter.error)
        self.on_free()

    async def _answer(self, what: SampleRequest | DeskCall) -> Given:
        if isinstance(what, SampleRequest):
            return await self.sampler.sample(what)
        match what:
            case DeskCall("spend", server):
                await self.desk.spend(server)
            case DeskCall("refund", server):
                await self.desk.refund(server)
            case DeskCall("take_place", server):
                ticket = await self.desk.take_place(server)
                if ticket is not None:
                    self._places.add((server, ticket))
                return ticket
            case DeskCall("free_place", server, int(ticket)):
                self._places.discard((server, ticket))
                await self.desk.free_place(server, ticket)
            case DeskCall("pause", server, float(seconds) | int(seconds)):
                await self.desk.pause(server, seconds)
            case DeskCall("spent", server):
                return await self.desk.spent(server)
            case _:
                raise ValueError(f"the desk does not know {what}")
        return None

    def _reply(self, number: int, done: asyncio.Task[Given]) -> None:
        del self._answering[number]
        if done.cancelled():
            self._write(Answer(number))
        elif (error := done.exception()) is not None:
            self._write(Answer(number, error=sendable(error)))
        else:
            self._write(Answer(number, done.result()))
