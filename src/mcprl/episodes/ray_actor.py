"""A Ray worker, which is an async actor that runs episodes and sends requests to the driver.

The sampler and the limits of the tool servers are in the driver, because all workers share them. With Ray, an actor
cannot call the driver. So the driver fetches requests and responds in batches: a thousand episodes need few calls.

    driver                                  worker
    run_episode(task, step, member, ...) →  runs the episode, and meanwhile:
    take_requests()                      ←  Request(7, "sample", ...), Request(8, "take_place", ("fmp",))
    respond([Response(7, completion)])   →  the episode continues
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from mcprl.config import RunConfig
from mcprl.episodes.collector import RunsEpisodes
from mcprl.episodes.stage import open_kit
from mcprl.errors import McprlError, WorkersStartError
from mcprl.functions import Code
from mcprl.records import Task, Trajectory, Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.sampler import AlwaysOpen
from mcprl.tools import open_toolbox
from mcprl.tools.stats import StatsDocument

_STATS_EVERY_S = 1.0  # interval for a worker that is never idle

T = TypeVar("T")
Method = Literal["sample", "spend", "refund", "take_place", "free_place", "pause", "spent"]


@dataclass(frozen=True, slots=True)
class Request:
    """A call from a worker to a method of the driver: Request(8, "take_place", ("fmp",))."""

    id: int
    method: Method
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of a request was cancelled and needs no response. The driver stops the request or frees its place."""

    id: int


@dataclass(frozen=True, slots=True)
class Response:
    """The return value of the method, or its exception."""

    id: int
    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Statistics of one worker's tool servers so far."""

    tools: StatsDocument
    restarts: int


EpisodeEnd = tuple[Trajectory | McprlError, WorkerStats | None]
"""How an episode ended. The stats are included at most once per second, and whenever the worker becomes idle."""


class DriverClient(AlwaysOpen):
    """A worker's access to the driver's sampler and limits."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._outbox: asyncio.Queue[Request | Cancel] = asyncio.Queue()
        self._pending: dict[int, asyncio.Future[Any]] = {}

    async def sample(self, request: SampleRequest) -> Completion:
        return await self._call("sample", request)

    async def publish(self, weights: Weights) -> Weights:
        raise NotImplementedError("weights are published to the driver's sampler, not to a worker's")

    async def spend(self, server: str) -> None:
        await self._call("spend", server)

    async def refund(self, server: str) -> None:
        await self._call("refund", server)

    async def take_place(self, server: str) -> int | None:
        return await self._call("take_place", server)

    async def free_place(self, server: str, ticket: int) -> None:
        await self._call("free_place", server, ticket)

    async def pause(self, server: str, seconds: float) -> None:
        await self._call("pause", server, seconds)

    async def spent(self, server: str) -> tuple[int, float]:
        return await self._call("spent", server)

    async def take_requests(self) -> list[Request | Cancel]:
        """Return all requests since the last call. Waits until there is one."""
        return await take_all(self._outbox)

    def respond(self, responses: Sequence[Response]) -> None:
        """Resolve the calls that these responses belong to. Responses to cancelled calls are ignored."""
        for response in responses:
            call = self._pending.get(response.id)
            if call is None or call.done():
                continue
            if response.error is not None:
                call.set_exception(response.error)
            else:
                call.set_result(response.value)

    async def _call(self, method: Method, *args: object) -> Any:
        request = Request(next(self._ids), method, args)
        call = self._pending[request.id] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait(request)
        try:
            return await call
        except asyncio.CancelledError:
            self._outbox.put_nowait(Cancel(request.id))
            raise
        finally:
            del self._pending[request.id]


OpenRunner = Callable[[DriverClient], AbstractAsyncContextManager[tuple[RunsEpisodes, Callable[[], WorkerStats]]]]


class EpisodeWorker:
    """The actor. It runs episodes with the runner from `open_runner`. The driver samples their turns."""

    def __init__(self, open_runner: OpenRunner) -> None:
        self._open_runner = open_runner
        self._client = DriverClient()
        self._stack = AsyncExitStack()
        self._runner: RunsEpisodes | None = None
        self._episodes: set[asyncio.Future[Trajectory]] = set()
        self._reported_at = -math.inf

    async def open(self) -> tuple[int, McprlError | None]:
        """Start the tool servers. Return the process id and any error. (Ray would wrap an error that is raised.)"""
        try:
            self._runner, self._read_stats = await self._stack.enter_async_context(self._open_runner(self._client))
        except McprlError as error:
            return os.getpid(), error
        return os.getpid(), None

    async def run_episode(self, task: Task, step: int, member: int, attempt: int) -> EpisodeEnd:
        """Run one episode. Cancelling this call cancels the episode."""
        assert self._runner is not None
        episode = asyncio.ensure_future(self._runner.run(task, step=step, member=member, attempt=attempt))
        self._episodes.add(episode)
        try:
            outcome = await episode
        except McprlError as error:
            outcome = error
        finally:
            self._episodes.discard(episode)
        stats, now = None, time.monotonic()
        if not self._episodes or now - self._reported_at > _STATS_EVERY_S:
            stats, self._reported_at = self._read_stats(), now
        return outcome, stats

    async def take_requests(self) -> list[Request | Cancel]:
        """Return the worker's requests to the driver. Waits until there is one. Only one caller at a time."""
        return await self._client.take_requests()

    async def respond(self, responses: Sequence[Response]) -> None:
        """Deliver the driver's responses to the requests."""
        self._client.respond(responses)

    async def close(self) -> None:
        """Cancel all episodes, then stop the tool servers. The driver responds to requests until this returns."""
        episodes = list(self._episodes)
        for episode in episodes:
            episode.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
        await self._stack.aclose()


@asynccontextmanager
async def open_runner(
    config: RunConfig, folder: str, log_dir: str, code: Code | None, client: DriverClient
) -> AsyncGenerator[tuple[RunsEpisodes, Callable[[], WorkerStats]]]:
    """Open everything that a worker needs to run episodes, in the folder in which the run was started."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise WorkersStartError(
            f"node {os.uname().nodename} does not have the folder in which the run was started: {error}",
            fix="make the same files available under the same paths on every node, with a shared disk or the same "
            "image",
        ) from error
    async with (
        open_toolbox(config.servers, log_dir=Path(log_dir), limits=client) as toolbox,
        open_kit(config, toolbox, logs=Path(log_dir), code=code) as kit,
    ):
        yield kit.runner(client), lambda: WorkerStats(toolbox.stats(), toolbox.restarts)


async def take_all(queue: asyncio.Queue[T]) -> list[T]:
    """Return all items of a queue. Waits until there is at least one."""
    items = [await queue.get()]
    while not queue.empty():
        items.append(queue.get_nowait())
    return items
