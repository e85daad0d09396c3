"""The processes of one tool server: a few that all episodes share, or a new one per episode.

A shared server has `replicas`. Each call goes to the replica with the fewest calls in flight. While one replica
restarts, the others serve. If the server keeps state per episode, all calls of an episode go to one replica.
A server with `isolation: per_episode` is started for one episode, never reused, and stopped when the episode ends.
`spares` are started in advance, because a start takes about a second.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcprl.errors import ServerStartError
from mcprl.protocol import EPISODE, EPISODE_LIVES_S
from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.connection import Answer, CallableServer, ServerConnection
from mcprl.tools.pins import PinnedTools
from mcprl.tools.session import Session
from mcprl.tools.specs import ServerSpec

_SPARES = 2  # servers started in advance for the next episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """Identifies an episode to a server: an id that nobody can guess, and the time after which the episode is certainly
    over.

    EpisodeKey(lives_s=600.0)
    """

    lives_s: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))


class EpisodeServer:
    """Sends the calls of one episode to one process, as long as that process is alive.

    A server that died has lost the episode's state. A new process would not know the earlier calls, so the policy would
    be scored on the wrong state. Instead, the episode is lost and run again.
    """

    def __init__(self, connection: ServerConnection, episode: EpisodeKey) -> None:
        self.connection = connection
        self._meta = {EPISODE: episode.id, EPISODE_LIVES_S: episode.lives_s}
        self._session: Session | None = None

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> Answer:
        session = await self.connection.live_session()
        if self._session is None:
            self._session = session
        if session is not self._session:
            raise self.connection.state_lost()
        return await self.connection.call(tool, arguments, deadline_s, meta=self._meta)


_logger = logging.getLogger(__name__)


class _Pool:
    """Base class of both pools. `starts` limits how many servers start at the same time."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path, pins: PinnedTools, starts: asyncio.Semaphore) -> None:
        self.spec = spec
        self.version = ""
        self._pins = pins
        self._starts = starts
        self._log_dir = log_dir
        self._made = 0

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return self._pins.definitions

    def _make(self, *, one_life: bool) -> ServerConnection:
        self._made += 1
        # All processes of a per-episode server log to one file; otherwise there would be thousands of files.
        number = f"-{self._made}" if self.spec.settings.replicas > 1 else ""
        log = self._log_dir / f"{quote(self.spec.name, safe='')}{number}.log"
        return ServerConnection(self.spec, log=log, pins=self._pins, one_life=one_life)

    async def _open(self, connection: ServerConnection) -> ServerConnection:
        try:
            async with self._starts:
                await connection.open()
        except BaseException:
            await connection.close()
            raise
        self.version = connection.version
        return connection


class SharedPool(_Pool):
    """A fixed number of replicas that all episodes share."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path, pins: PinnedTools, starts: asyncio.Semaphore) -> None:
        super().__init__(spec, log_dir=log_dir, pins=pins, starts=starts)
        self._replicas = [self._make(one_life=False) for _ in range(spec.settings.replicas)]
        self._leases: Counter[ServerConnection] = Counter()

    @property
    def restarts(self) -> int:
        return sum(replica.restarts for replica in self._replicas)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(replica.pid for replica in self._replicas if replica.pid is not None)

    async def open(self) -> None:
        """Start the first replica, which lists the tools, then the others."""
        first, *others = self._replicas
        await self._open(first)
        await asyncio.gather(*(self._open(replica) for replica in others))

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    @asynccontextmanager
    async def lease(self, episode: EpisodeKey) -> AsyncGenerator[CallableServer]:
        if not any(tool.episodic for tool in self.definitions):
            yield self
            return
        replica = min(self._replicas, key=lambda each: (not each.is_up, self._leases[each]))
        self._leases[replica] += 1
        try:
            yield EpisodeServer(replica, episode)
        finally:
            self._leases[replica] -= 1

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> Answer:
        """Send the call to the running replica with the fewest calls in flight."""
        replica = min(self._replicas, key=lambda each: (not each.is_up, each.in_flight))
        return await replica.call(tool, arguments, deadline_s)


class EpisodePool(_Pool):
    """One new server per episode. Some are started in advance."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path, pins: PinnedTools, starts: asyncio.Semaphore) -> None:
        super().__init__(spec, log_dir=log_dir, pins=pins, starts=starts)
        self.restarts = 0
        self._warm: deque[ServerConnection] = deque()
        self._lent: set[ServerConnection] = set()
        self._starting = 0
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(each.pid for each in (*self._lent, *self._warm) if each.pid is not None)

    async def open(self) -> None:
        """Start one server, which lists the tools and serves the first episode, then the spares."""
        self._warm.append(await self._open(self._make(one_life=True)))
        await asyncio.gather(*(self._start_spare() for _ in range(_SPARES - 1)))

    async def close(self) -> None:
        self._closing = True
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in (*self._lent, *self._warm)))
        self._warm.clear()

    @asynccontextmanager
    async def lease(self, episode: EpisodeKey) -> AsyncGenerator[CallableServer]:
        connection = await self._take()
        self._lent.add(connection)
        try:
            yield connection
        finally:
            # Close it in the background: the next episode has its own server and does not wait for this one.
            self._run(self._end(connection))

    async def _take(self) -> ServerConnection:
        while self._warm:
            connection = self._warm.popleft()
            if connection.is_up:
                self._refill()
                return connection
            self._run(connection.close())  # the server died while it was a spare
        self._refill()
        return await self._open(self._make(one_life=True))

    def _refill(self) -> None:
        if self._closing:
            return
        for _ in range(_SPARES - len(self._warm) - self._starting):
            self._run(self._start_spare())

    async def _start_spare(self) -> None:
        self._starting += 1
        try:
            self._warm.append(await self._open(self._make(one_life=True)))
        except ServerStartError as error:
            # Not an error yet: an episode that finds no spare starts its own server, and that reports the failure.
            _logger.warning("a spare server did not start: %s", error)
        finally:
            self._starting -= 1

    async def _end(self, connection: ServerConnection) -> None:
        await connection.close()
        self._lent.discard(connection)

    def _run(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


ServerPool = SharedPool | EpisodePool
"""All processes of one server."""


def make_pool(spec: ServerSpec, *, log_dir: Path, pins: PinnedTools, starts: asyncio.Semaphore) -> ServerPool:
    """Create the pool that the server's `isolation` setting asks for."""
    kind = EpisodePool if spec.settings.isolation == "per_episode" else SharedPool
    return kind(spec, log_dir=log_dir, pins=pins, starts=starts)
