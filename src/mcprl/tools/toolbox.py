"""The toolbox: all tool servers of a run, one catalog, and leases that let episodes call tools."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

from mcprl.config import CassetteMode, ServersConfig, ServerSettings
from mcprl.errors import ServerFileError, ServerStartError, did_you_mean
from mcprl.protocol import EPISODE, EPISODE_LIVES_S
from mcprl.records import Observation, ToolCall
from mcprl.tools import connection
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.calls import Instead, Pipeline, Route, open_route
from mcprl.tools.cassette import Cassette
from mcprl.tools.catalog import Catalog, Tool, ToolDefinition, compile_checks, is_offered, matches
from mcprl.tools.connection import Answer, CallableServer, ServerConnection, shortened
from mcprl.tools.limits import LimitsService
from mcprl.tools.pins import PinnedTools
from mcprl.tools.session import Session
from mcprl.tools.specs import ServerSpec, load_specs
from mcprl.tools.stats import ServerStats, StatsDocument, stats_document

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# Starting a server is mostly CPU time for imports, so more concurrent starts would only slow down all of them.
_STARTS_PER_CORE = 2

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


class _Pool:
    """The processes of one tool server. `starts` limits how many servers start at the same time."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path, starts: asyncio.Semaphore) -> None:
        self.spec = spec
        self.version = ""
        self._pins = PinnedTools(spec.name)
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
    """A fixed number of replicas that all episodes share. While one restarts, the others serve.

    If the server keeps state per episode, all calls of an episode go to one replica.
    """

    def __init__(self, spec: ServerSpec, *, log_dir: Path, starts: asyncio.Semaphore) -> None:
        super().__init__(spec, log_dir=log_dir, starts=starts)
        self._replicas = [self._make(one_life=False) for _ in range(spec.settings.replicas)]
        self._leases: Counter[ServerConnection] = Counter()

    @property
    def restarts(self) -> int:
        return sum(replica.restarts for replica in self._replicas)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(replica.pid for replica in self._replicas if replica.pid is not None)

    async def open(self) -> None:
        """Start the first replica and get the tool list from it. Then start the others."""
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
    """One new server per episode, never reused. Some are started in advance, because a start takes about a second."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path, starts: asyncio.Semaphore) -> None:
        super().__init__(spec, log_dir=log_dir, starts=starts)
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
        """Start one server, which lists the tools and serves the first episode. Then start the spares."""
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


def make_pool(spec: ServerSpec, *, log_dir: Path, starts: asyncio.Semaphore) -> ServerPool:
    """Create the pool that the server's `isolation` setting asks for."""
    kind = EpisodePool if spec.settings.isolation == "per_episode" else SharedPool
    return kind(spec, log_dir=log_dir, starts=starts)


class Toolbox:
    """All servers of a run. Entering the context starts them and builds the catalog; leaving it stops them.

    async with Toolbox(load_server_specs(Path("servers.json"), {}), log_dir=Path("logs")) as toolbox:
        async with toolbox.lease(["find_person"]) as lease:
            observation = await lease.call(ToolCall(name="find_person", arguments={"name": "Ana"}))

    With a cassette in mode `replay`, no server is started: the cassette lists the tools, and `replayed` holds the
    settings of its servers. In mode `mixed`, servers that only the cassette has are replayed, and those in `specs` are
    started. The toolbox keeps its own rates and budgets unless `limits` is a service that keeps them. `earlier_calls`
    holds the number of calls made to each server before the run was resumed; these count towards the budgets.
    """

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        *,
        log_dir: Path,
        cassette: Cassette | None = None,
        cassette_mode: CassetteMode = "live",
        replayed: Mapping[str, ServerSettings] | None = None,
        limits: LimitsService | None = None,
        earlier_calls: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        if len({spec.name for spec in specs}) != len(specs):
            raise ValueError("two servers have the same name")
        if (cassette is None) != (cassette_mode == "live"):
            raise ValueError("set both servers.cassette and a mode other than live, or neither")
        self._specs = () if cassette_mode == "replay" else tuple(specs)
        self._log_dir = log_dir
        self._cassette = cassette
        self._mode: CassetteMode = cassette_mode
        self._replayed = replayed or {}
        self._limits = limits
        self._earlier_calls = earlier_calls
        self._pools: dict[str, ServerPool] = {}
        self._routes: dict[str, Route] = {}
        self._stack = AsyncExitStack()
        self._catalog: Catalog | None = None
        self._pipeline: Pipeline | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            raise RuntimeError("the toolbox is not open: use `async with`")
        return self._catalog

    @property
    def definitions(self) -> Mapping[str, tuple[str, tuple[ToolDefinition, ...]]]:
        """The version and the tools of each server, including tools that are not offered to the policy."""
        if self._mode == "replay":
            assert self._cassette is not None
            return self._cassette.tools()
        started = {name: (pool.version, pool.definitions) for name, pool in self._pools.items()}
        if self._mode == "mixed":
            assert self._cassette is not None
            return {**self._cassette.tools(), **started}
        return started

    def world_of(self, tool: str) -> str:
        """Return where calls to a tool go: to the cassette (recorded) or to a server (live)."""
        assert self._pipeline is not None
        if self._mode in {"replay", "mixed"}:
            return "recorded" if self._mode == "replay" else self._pipeline.world_of(self.catalog[tool])
        return "live"

    @property
    def restarts(self) -> int:
        """The total number of server restarts."""
        return sum(pool.restarts for pool in self._pools.values())

    def pids(self, server: str) -> tuple[int, ...]:
        """Return the ids of a server's running processes; empty if mcprl did not start the server."""
        return self._pools[server].pids

    def stats(self) -> StatsDocument:
        """Return statistics of all calls so far, by server and tool."""
        assert self._pipeline is not None
        servers = {
            name: ServerStats(
                restarts=self._pools[name].restarts if name in self._pools else 0,
                calls=route.limits.calls,
                usd=route.limits.usd,
                breaker_openings=route.breaker.openings,
            )
            for name, route in self._routes.items()
        }
        return stats_document(servers, self._pipeline.stats)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            await self._open()
            settings = {**self._replayed, **{spec.name: spec.settings for spec in self._specs}}
            definitions = await asyncio.to_thread(lambda: self.definitions)
            self._routes = {
                name: open_route(
                    name, settings.get(name, ServerSettings()), version, self._limits, self._earlier_calls.get(name, 0)
                )
                for name, (version, _) in definitions.items()
            }
            tools = tuple(_on_offer(definitions, self._routes))
            self._catalog = Catalog(tools, await _compile(tools, self._routes))
            self._pipeline = Pipeline(
                self._catalog, self._routes, cassette=self._cassette, cassette_mode=self._mode, started=self._pools
            )
            if self._cassette is not None and self._mode in {"record", "replay_else_live"}:
                for name, (version, tools) in definitions.items():
                    await asyncio.to_thread(self._cassette.record_tools, name, version, tools)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._catalog = None
        await self._stack.aclose()

    def lease(
        self, tool_names: Sequence[str] | None, *, probes: Sequence[str] = (), lives_s: float = 3600.0
    ) -> AbstractAsyncContextManager[ToolLease]:
        """Lease the named tools (None: all tools) to one episode, which cannot call any other tool.

        `probes` are tools that only the environment calls. The episode is certainly over after `lives_s` seconds.
        """
        return self._lease(tool_names, probes, EpisodeKey(lives_s=lives_s))

    @asynccontextmanager
    async def _lease(
        self, tool_names: Sequence[str] | None, probes: Sequence[str], episode: EpisodeKey
    ) -> AsyncGenerator[ToolLease]:
        tools, probed = self.catalog.select(tool_names), self.catalog.select(probes)
        assert self._pipeline is not None
        needed = dict.fromkeys(tool.server for tool in (*tools, *probed))
        async with AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(self._pools[name].lease(episode))
                for name in needed
                if name in self._pools
            }
            yield ToolLease(tools, self._pipeline, servers, probed)

    async def _open(self) -> None:
        """Start every server. The first failure is raised, with the others as notes."""
        starts = asyncio.Semaphore(_STARTS_PER_CORE * (os.cpu_count() or 1))
        for spec in self._specs:
            self._pools[spec.name] = make_pool(spec, log_dir=self._log_dir, starts=starts)
        await _gather(*(pool.open() for pool in self._pools.values()))

    async def _close(self) -> None:
        closings = [pool.close() for pool in self._pools.values()]
        errors = [error for error in await asyncio.gather(*closings, return_exceptions=True) if error is not None]
        for route in self._routes.values():
            await route.limits.settle()
        if errors:
            raise errors[0]


class ToolLease:
    """The tools that one episode may call."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        pipeline: Pipeline,
        servers: Mapping[str, CallableServer],
        probed: tuple[Tool, ...] = (),
    ) -> None:
        self.tools = tools
        self._offered = {tool.name: tool for tool in tools}
        self._probed = {tool.name: tool for tool in probed}
        self._pipeline = pipeline
        self._servers = servers

    async def call(
        self, call: ToolCall, *, without: Collection[str] = (), instead: Instead | None = None
    ) -> Observation:
        """Run one call. An error caused by the policy is returned as an observation; an InfrastructureError is raised.

        For this call, the tools in `without` do not exist. If `instead` returns an observation for a valid call, that
        observation is returned and the call is not made.
        """
        offered = {name: tool for name, tool in self._offered.items() if name not in without}
        return await self._pipeline.run(call, offered=offered, servers=self._servers, instead=instead)

    async def probe(self, call: ToolCall) -> Observation:
        """Run one call that the environment makes to inspect the state of a server."""
        return await self._pipeline.run(call, offered=self._probed, servers=self._servers)


@asynccontextmanager
async def open_toolbox(
    config: ServersConfig,
    *,
    log_dir: Path,
    limits: LimitsService | None = None,
    earlier_calls: Mapping[str, int] = MappingProxyType({}),
) -> AsyncGenerator[Toolbox]:
    """Open the toolbox of a recipe: servers, keys and cassette as configured in its `servers` section.

    `limits` is a service that keeps rates and budgets for several toolboxes; without it, this toolbox keeps its own.
    """
    specs: Sequence[ServerSpec] = ()
    async with AsyncExitStack() as stack:
        cassette: Cassette | None = None
        if config.cassette is not None and config.cassette_mode != "live":
            writable = config.cassette_mode in {"record", "replay_else_live"}
            cassette = await asyncio.to_thread(Cassette.open, config.cassette, writable=writable)
            stack.callback(cassette.close)
            await asyncio.to_thread(_check_replayed, config, cassette)
        if config.cassette_mode != "replay":
            specs = load_specs(config)
        toolbox = Toolbox(
            specs,
            log_dir=log_dir,
            cassette=cassette,
            cassette_mode=config.cassette_mode,
            replayed=config.settings,
            limits=limits,
            earlier_calls=earlier_calls,
        )
        yield await stack.enter_async_context(toolbox)


def _check_replayed(config: ServersConfig, cassette: Cassette) -> None:
    """Check that the cassette has the servers named in the settings, because mode `replay` reads no mcpServers file."""
    if config.cassette_mode != "replay":
        return
    known = cassette.tools()
    for name in config.settings:
        if name not in known:
            raise ServerFileError(
                f"servers.settings has an entry for {name!r}, but {config.cassette} has no such "
                f"server{did_you_mean(name, known)}",
                fix="correct the name, or record this server",
            )


async def _gather(*works: Awaitable[_Result]) -> list[_Result]:
    """Await all. The first failure is raised, with the others as notes."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"Also: {other}")
        raise errors[0]
    return cast("list[_Result]", outcomes)


async def _compile(tools: Sequence[Tool], routes: Mapping[str, Route]) -> dict[str, ArgumentCheck]:
    """Compile the argument checks of all tools off the event loop, within START_S seconds for each server."""
    by_server: dict[str, list[Tool]] = {}
    for tool in tools:
        by_server.setdefault(tool.server, []).append(tool)
    checks: dict[str, ArgumentCheck] = {}
    for made in await _gather(*(_compile_server(server, offered) for server, offered in by_server.items())):
        checks |= made
    for tool in tools:
        for what in checks[tool.name].unenforced:
            _logger.warning(
                "server %r: %s of tool %r is not enforced by mcprl, because checking it takes more than linear time",
                tool.server,
                shortened(what),
                tool.name,
            )
    return checks


async def _compile_server(server: str, tools: Sequence[Tool]) -> dict[str, ArgumentCheck]:
    try:
        async with asyncio.timeout(connection.START_S):
            return await asyncio.to_thread(compile_checks, server, tools)
    except TimeoutError:
        raise ServerStartError(
            f"the tool schemas of server {server!r} were not compiled within {connection.START_S:g} s",
            fix=f"use servers.settings.{server}.deny to exclude the tools with large schemas",
        ) from None


def _on_offer(
    definitions: Mapping[str, tuple[str, tuple[ToolDefinition, ...]]], routes: Mapping[str, Route]
) -> Iterator[Tool]:
    for server, (_, tools) in definitions.items():
        settings = routes[server].settings
        for tool in tools:
            if is_offered(tool.name, settings.allow, settings.deny):
                yield Tool(
                    name=tool.name,
                    description=tool.description,
                    parameters=tool.parameters,
                    server=server,
                    read_only=tool.read_only or matches(tool.name, settings.read_only),
                    idempotent=tool.idempotent,
                    episodic=tool.episodic,
                )
