"""What the run and its workers write to each other: episodes to play, turns to sample, calls to be let through.

Everything that is ready on one side goes in one piece of post, so that a thousand episodes cost few messages.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast

from mcprl.errors import McprlError
from mcprl.records import Task, Trajectory
from mcprl.samplers import Completion, SampleRequest
from mcprl.tools.stats import StatsDocument

__all__ = [
    "Answer",
    "Ask",
    "DeskCall",
    "Drop",
    "Ended",
    "Figures",
    "FromWorker",
    "Given",
    "Link",
    "Play",
    "Stop",
    "ToWorker",
    "pack",
    "sendable",
    "unpack",
]


Given = Completion | tuple[int, float] | int | None
"""What a question brings: a turn, what was spent, the ticket of a place, or only that it is done."""


@dataclass(frozen=True, slots=True)
class Play:
    """To the worker: play this episode. `number` is what both sides call it."""

    number: int
    task: Task
    step: int
    member: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker: nobody wants this episode any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """To the worker: what an Ask brought. Each gets one, also one that was dropped."""

    number: int
    value: Given = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class DeskCall:
    """A question to the desk that keeps the limits of all workers: DeskCall("take_place", "fmp")."""

    what: Literal["spend", "refund", "take_place", "free_place", "pause", "spent"]
    server: str
    value: float | None = None  # the ticket of a place, or the seconds of a pause


@dataclass(frozen=True, slots=True)
class Ask:
    """To the run: sample a turn, or ask the desk."""

    number: int
    what: SampleRequest | DeskCall


@dataclass(frozen=True, slots=True)
class Drop:
    """To the run: nobody waits for the answer to this Ask any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """To the run: an episode is over and its lease is free. With neither trajectory nor error, it was stopped."""

    number: int
    trajectory: Trajectory | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """To the run: what the worker's tool servers did so far."""

    stats: StatsDocument
    restarts: int


ToWorker = Play | Stop | Answer
FromWorker = Ask | Drop | Ended | Figures


class Link(Protocol):
    """The post to one worker, as long as that worker lives. Both methods raise WorkerLostError once it does not."""

    async def send(self, letters: Sequence[ToWorker]) -> None: ...

    async def receive(self) -> Sequence[FromWorker]:
        """All that the worker has written since; waits for the first. One caller at a time."""
        ...

    async def close(self) -> None:
        """End the worker, with everything that it started; also one that no longer answers."""
        ...


def pack(letters: Sequence[ToWorker] | Sequence[FromWorker]) -> bytes:
    """The letters as bytes for another process."""
    return pickle.dumps(list(letters), protocol=5)


def unpack(post: bytes) -> list[ToWorker | FromWorker]:
    """The letters in the bytes. They come from a process that we started: pickle runs what it reads."""
    return cast("list[ToWorker | FromWorker]", pickle.loads(post))


def sendable(error: BaseException) -> Exception:
    """The error as another process can read it: ours as they are, any other by name, with its traceback in words."""
    if isinstance(error, McprlError):
        return error
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())
