"""The worker's side: it plays what it is told to, and asks the run for every turn and every limited call."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from mcprl.episodes.collector import RunsEpisodes
from mcprl.episodes.worker_letters import (
    Answer,
    Ask,
    DeskCall,
    Drop,
    Ended,
    Figures,
    FromWorker,
    Given,
    Play,
    Stop,
    ToWorker,
    sendable,
)
from mcprl.errors import WorkerLostError
from mcprl.records import Trajectory, Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.sampler import AlwaysOpen

__all__ = ["AskedDesk", "AskedSampler", "Player", "PostBox"]

# How often the run hears of the figures of a worker that never rests.
_FIGURES_S = 1.0


@dataclass(frozen=True, slots=True)
class _Asked:
    what: SampleRequest | DeskCall
    answer: asyncio.Future[Given]


class PostBox:
    """What the worker writes to the run, and the questions whose answers it waits for."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._out: list[FromWorker] = []
        self._has_post = asyncio.Event()
        self._asked: dict[int, _Asked] = {}
        self._closed = False

    def write(self, *letters: FromWorker) -> None:
        self._out += letters
        self._has_post.set()

    async def empty(self) -> list[FromWorker]:
        """All letters to the run, once there is one."""
        await self._has_post.wait()
        self._has_post.clear()
        letters, self._out = self._out, []
        return letters

    async def ask(self, what: SampleRequest | DeskCall) -> Given:
        """Put a question to the run and wait for the answer; raises the error that is the answer."""
        if self._closed:
            raise _closed()
        number = next(self._numbers)
        answer: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(what, answer)
        self.write(Ask(number, what))
        try:
            return await answer
        except asyncio.CancelledError:
            self.write(Drop(number))
            raise

    def hear(self, letter: Answer) -> None:
        """The run has answered."""
        asked = self._asked.pop(letter.number, None)
        if asked is None:
            return
        if asked.answer.done():
            self._give_back(asked.what, letter.value)
        elif letter.error is not None:
            asked.answer.set_exception(letter.error)
        else:
            asked.answer.set_result(letter.value)

    def close(self) -> None:
        """Nobody will answer any more."""
        self._closed = True
        asked, self._asked = self._asked, {}
        for each in asked.values():
            if not each.answer.done():
                each.answer.set_exception(_closed())

    def _give_back(self, what: SampleRequest | DeskCall, value: Given) -> None:
        """A place in the rate was given while its asker was being cancelled: it uses up nothing."""
        if isinstance(what, DeskCall) and what.what == "take_place" and isinstance(value, int):
            # Its answer says nothing, and `hear` knows no question of this number.
            self.write(Ask(next(self._numbers), DeskCall("free_place", what.server, value)))


class AskedSampler(AlwaysOpen):
    """A sampler that stands in the run: each turn is asked for. It is published to over there."""

    def __init__(self, post: PostBox) -> None:
        self._post = post

    async def sample(self, request: SampleRequest) -> Completion:
        return cast("Completion", await self._post.ask(request))

    async def publish(self, weights: Weights) -> Weights:
        raise NotImplementedError("weights are published to the run's own sampler, not to a worker's")


class AskedDesk:
    """The desk of the limits, which stands in the run."""

    def __init__(self, post: PostBox) -> None:
        self._post = post

    async def spend(self, server: str) -> None:
        await self._post.ask(DeskCall("spend", server))

    async def refund(self, server: str) -> None:
        await self._post.ask(DeskCall("refund", server))

    async def take_place(self, server: str) -> int | None:
        return cast("int | None", await self._post.ask(DeskCall("take_place", server)))

    async def free_place(self, server: str, ticket: int) -> None:
        await self._post.ask(DeskCall("free_place", server, ticket))

    async def pause(self, server: str, seconds: float) -> None:
        await self._post.ask(DeskCall("pause", server, seconds))

    async def spent(self, server: str) -> tuple[int, float]:
        return cast("tuple[int, float]", await self._post.ask(DeskCall("spent", server)))


class Player:
    """Plays what the run's letters say, and writes back how it ended.

    `figures` gives what the tool servers did so far: the run hears of it once a second, and whenever nothing is played.
    """

    def __init__(self, runner: RunsEpisodes, post: PostBox, figures: Callable[[], Figures]) -> None:
        self._runner = runner
        self._post = post
        self._figures = figures
        self._told_at = 0.0
        self._playing: dict[int, asyncio.Task[Trajectory]] = {}

    def hear(self, letters: Sequence[ToWorker]) -> None:
        """Do what the letters say."""
        for letter in letters:
            match letter:
                case Answer():
                    self._post.hear(letter)
                case Play():
                    self._play(letter)
                case Stop():
                    if letter.number in self._playing:
                        self._playing[letter.number].cancel()

    async def close(self) -> None:
        """Stop all episodes, and wait until their leases are free."""
        for task in self._playing.values():
            task.cancel()
        await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def _play(self, letter: Play) -> None:
        episode = self._runner.run(letter.task, step=letter.step, member=letter.member, attempt=letter.attempt)
        task = asyncio.ensure_future(episode)
        self._playing[letter.number] = task
        task.add_done_callback(lambda done: self._end(letter.number, done))

    def _end(self, number: int, done: asyncio.Future[Trajectory]) -> None:
        del self._playing[number]
        now = time.monotonic()
        if not self._playing or now - self._told_at > _FIGURES_S:
            self._told_at = now
            self._post.write(self._figures())
        if done.cancelled():
            self._post.write(Ended(number))
        elif (error := done.exception()) is not None:
            self._post.write(Ended(number, error=sendable(error)))
        else:
            self._post.write(Ended(number, trajectory=done.result()))


def _closed() -> WorkerLostError:
    return WorkerLostError("the worker is being ended", fix="none is needed: its episodes are run again elsewhere")
