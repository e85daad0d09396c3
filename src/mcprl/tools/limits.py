"""Rate limits and budgets of tool servers, for one process or shared by several.

Each call first asks the `Limits` of its server. If one process runs all episodes, it keeps the limits itself. If
several processes run episodes, the vendor counts their calls together. So one `SharedLimits` holds the limits of every
server, and every process asks it through `RemoteLimits`.

    service = SharedLimits(limit_settings(config))         # once per run
    open_toolbox(config, log_dir=logs, limits=service)     # in each process, through a LimitsService

A limit is never exceeded, even if messages between the processes are lost. If a process cannot release what it took,
a place in the rate limit stays taken until it expires, and a call in the budget stays counted until the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Protocol

from mcprl.config import BudgetSettings, RateSettings, ServersConfig, ServerSettings
from mcprl.errors import BudgetExceededError, InfrastructureError, McprlError, ServerFileError, did_you_mean
from mcprl.tools.specs import load_specs


class Budget:
    """Counts the calls sent to a server, and refuses a call that would exceed a limit.

    Money is counted in decimal, as in the configuration: three calls at 0.1 cost 0.3, not 0.30000000000000004.
    """

    def __init__(self, server: str, settings: BudgetSettings, earlier_calls: int = 0) -> None:
        self._server = server
        self._earlier = earlier_calls
        self._max_calls = settings.calls
        # str gives the shortest text that parses to this float, which is what the user wrote.
        self._max_usd = None if settings.usd is None else Decimal(str(settings.usd))
        self._price = Decimal(str(settings.usd_per_call))
        self.calls = 0
        """Calls sent so far, including retries, but not those sent before the run was resumed."""

    @property
    def usd(self) -> float:
        """The cost of the calls in USD."""
        return float(self.calls * self._price)

    def spend(self) -> None:
        """Count a call before it is sent. If it exceeds the budget, raise BudgetExceededError and do not count it."""
        used = self._earlier + self.calls
        if self._max_calls is not None and used >= self._max_calls:
            raise self._exceeded(f"{used:,} of {self._max_calls:,} calls", "calls")
        if self._max_usd is not None and (used + 1) * self._price > self._max_usd:
            spent = f"{used * self._price:f} of {self._max_usd:f} USD at {self._price:f} per call"
            raise self._exceeded(spent, "usd")
        self.calls += 1

    def refund(self) -> None:
        """Undo one `spend`. Only for a call that was certainly not sent."""
        assert self.calls > 0
        self.calls -= 1

    def _exceeded(self, spent: str, setting: str) -> BudgetExceededError:
        return BudgetExceededError(
            f"the next call would exceed the budget of server {self._server!r}: the run has used {spent}",
            fix=f"raise servers.settings.{self._server}.budget.{setting}, or shorten the run",
        )


class RateLimit:
    """Lets calls pass in order of arrival, no faster than the rate allows. A cancelled waiter uses no capacity.

    async with limit.passage():
        answer = await server.call(...)
    """

    def __init__(self, settings: RateSettings | None) -> None:
        self._per_s = settings.per_s if settings is not None else 0.0
        self._places = asyncio.Semaphore(settings.calls) if settings is not None else None
        self._paused_until = 0.0
        # asyncio.Lock is first come, first served. The task that holds it is the next to pass.
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    @asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        """Wait until the next call may be sent. The call is made inside the block."""
        latest = await self.take_place()
        try:
            yield
        finally:
            if latest is not None:
                self.free_place(latest)

    def pause(self, seconds: float) -> None:
        """Let no call pass for `seconds`, as Retry-After asks. A longer pause in progress is kept."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    async def take_place(self) -> asyncio.TimerHandle | None:
        """Wait for a place. Return the timer that frees it unless `free_place` does so earlier; None without a rate."""
        loop = asyncio.get_running_loop()
        places = self._places
        if self._num_waiting or loop.time() < self._paused_until or (places is not None and places.locked()):
            self._num_waiting += 1
            try:
                async with self._turn:
                    await self._wait_for_place(loop)
            finally:
                self._num_waiting -= 1
        elif places is not None:
            await places.acquire()  # returns at once, because the lock is free
        return None if places is None else loop.call_later(2 * self._per_s, places.release)

    def free_place(self, latest: asyncio.TimerHandle) -> None:
        """Free the place of an answered call one period from now, or when `latest` fires if that is sooner."""
        loop = asyncio.get_running_loop()
        assert self._places is not None
        if loop.time() + self._per_s < latest.when():
            latest.cancel()
            loop.call_later(self._per_s, self._places.release)

    async def _wait_for_place(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._places is not None:
            await self._places.acquire()
        try:
            # In a loop: the pause may be extended during the sleep, and a timer may fire slightly early.
            while (delay_s := self._paused_until - loop.time()) > 0:  # noqa: ASYNC110 - it waits for a time
                await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            if self._places is not None:
                self._places.release()
            raise


class LocalLimits:
    """The limits of a server that only this process calls."""

    def __init__(self, server: str, settings: ServerSettings, earlier_calls: int = 0) -> None:
        self.budget = Budget(server, settings.budget, earlier_calls)
        self.rate = RateLimit(settings.rate)
        self.passage = self.rate.passage

    @property
    def calls(self) -> int:
        """The number of calls that were counted and not refunded."""
        return self.budget.calls

    @property
    def usd(self) -> float:
        """The cost of these calls in USD."""
        return self.budget.usd

    async def spend(self) -> None:
        """Count a call before it is sent. If it exceeds the budget, raise BudgetExceededError and do not count it."""
        self.budget.spend()

    async def refund(self) -> None:
        """Undo one `spend`. Only for a call that was certainly not sent."""
        self.budget.refund()

    async def pause(self, seconds: float) -> None:
        """Let no call pass for `seconds`."""
        self.rate.pause(seconds)

    async def settle(self) -> None:
        """Wait until every refund has arrived. Local refunds are immediate, so this returns at once."""


class LimitsService(Protocol):
    """The limits of every server, for callers in other processes. Implemented by a client of `SharedLimits`.

    If the service cannot be reached, its methods raise an InfrastructureError. BudgetExceededError is passed on
    unchanged. If a caller is cancelled, its request is cancelled at the service.
    """

    async def spend(self, server: str) -> None:
        """Count one call. If it exceeds the budget, raise BudgetExceededError and do not count it."""
        ...

    async def refund(self, server: str) -> None:
        """Undo one `spend`."""
        ...

    async def take_place(self, server: str) -> int | None:
        """Wait until the next call may be sent. Return a ticket for `free_place`, or None if there is no rate."""
        ...

    async def free_place(self, server: str, ticket: int) -> None:
        """Free the place of an answered call. Does nothing if the ticket has expired or was already freed."""
        ...

    async def pause(self, server: str, seconds: float) -> None:
        """Let no process send a call for `seconds`."""
        ...

    async def spent(self, server: str) -> tuple[int, float]:
        """Return the number of calls by all processes so far, and their cost in USD."""
        ...


class SharedLimits:
    """The limits of every server of a run, held by one process for all processes.

    service = SharedLimits({"fmp": ServerSettings(rate=RateSettings(calls=300, per_s=60.0))})
    await service.spend("fmp")
    ticket = await service.take_place("fmp")
    ...  # make the call
    await service.free_place("fmp", ticket)

    A `take_place` that is cancelled while it waits uses no capacity. If a worker dies and never frees its ticket, the
    place is free again two periods after it was taken. Counts are only in memory, so a run needs a single service.
    """

    def __init__(
        self, settings: Mapping[str, ServerSettings], earlier_calls: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        self._limits = {
            server: LocalLimits(server, each, earlier_calls.get(server, 0)) for server, each in settings.items()
        }
        self._tickets: dict[str, dict[int, asyncio.TimerHandle]] = {server: {} for server in settings}
        self._numbers = itertools.count()

    async def spend(self, server: str) -> None:
        self._of(server).budget.spend()

    async def refund(self, server: str) -> None:
        self._of(server).budget.refund()

    async def take_place(self, server: str) -> int | None:
        latest = await self._of(server).rate.take_place()
        if latest is None:
            return None
        tickets, now = self._tickets[server], asyncio.get_running_loop().time()
        # The tickets of a dead worker are never freed. Tickets expire in the order in which they were made.
        while tickets and tickets[oldest := next(iter(tickets))].when() <= now:
            del tickets[oldest]
        ticket = next(self._numbers)
        tickets[ticket] = latest
        return ticket

    async def free_place(self, server: str, ticket: int) -> None:
        limits = self._of(server)
        latest = self._tickets[server].pop(ticket, None)
        if latest is not None:
            limits.rate.free_place(latest)

    async def pause(self, server: str, seconds: float) -> None:
        self._of(server).rate.pause(seconds)

    async def spent(self, server: str) -> tuple[int, float]:
        limits = self._of(server)
        return limits.calls, limits.usd

    def num_tickets(self, server: str) -> int:
        """Return the number of tickets in memory: those in use, plus expired ones that the next ticket will remove."""
        return len(self._tickets[server])

    def _of(self, server: str) -> LocalLimits:
        limits = self._limits.get(server)
        if limits is None:
            raise ServerFileError(
                f"a worker uses server {server!r}, which the run does not know{did_you_mean(server, self._limits)}",
                fix="use the run's mcpServers file on every worker",
            )
        return limits


class RemoteLimits:
    """The limits of a server that other processes call too, kept by a service.

    `calls` and `usd` count only the calls of this process, so the counts of all processes add up to those of the
    service. If the service has ended, a refund is lost without an error: the answer can still be used, and the next
    `spend` raises.
    """

    def __init__(self, service: LimitsService, server: str, *, usd_per_call: float = 0.0) -> None:
        self._service = service
        self._server = server
        self._share = Budget(server, BudgetSettings(usd_per_call=usd_per_call))
        # The event loop holds only weak references to tasks, so keep strong ones.
        self._background: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> int:
        return self._share.calls

    @property
    def usd(self) -> float:
        return self._share.usd

    async def spend(self) -> None:
        spending = asyncio.ensure_future(self._service.spend(self._server))
        try:
            await asyncio.shield(spending)
        except asyncio.CancelledError:
            # Only the service knows whether it counted the call.
            self._start(self._take_back(spending))
            raise
        self._share.spend()

    async def refund(self) -> None:
        self._share.refund()
        # Runs to its end even if the caller is cancelled. Awaited, because the caller's next `spend` may need the
        # refund.
        await asyncio.shield(self._start(_send(self._service.refund(self._server))))

    @asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        ticket = await self._service.take_place(self._server)
        try:
            yield
        finally:
            if ticket is not None:
                # Do not delay the answer until the service replies.
                self._start(_send(self._service.free_place(self._server, ticket)))

    async def pause(self, seconds: float) -> None:
        await asyncio.shield(self._start(_send(self._service.pause(self._server, seconds))))

    async def settle(self) -> None:
        while self._background:
            await asyncio.wait(self._background)

    async def _take_back(self, spending: asyncio.Future[None]) -> None:
        with contextlib.suppress(McprlError):  # refused, or the service is gone: nothing to undo
            await spending
            await self._service.refund(self._server)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _send(request: Awaitable[None]) -> None:
    with contextlib.suppress(InfrastructureError):
        await request


Limits = LocalLimits | RemoteLimits
"""The limits of one server."""


def limit_settings(config: ServersConfig) -> Mapping[str, ServerSettings]:
    """Return the settings of every server that a toolbox with this configuration would start. Starts no server.

    It reads the mcpServers file as the toolbox does, so errors in the file are reported before a worker starts.
    """
    if config.cassette_mode == "replay":
        return config.settings
    return {spec.name: spec.settings for spec in load_specs(config)}


def make_limits(server: str, settings: ServerSettings, service: LimitsService | None, earlier_calls: int = 0) -> Limits:
    """Create the limits of a server, kept by this process or by a service for several processes.

    `earlier_calls` were made before the run was resumed. A service has already counted them.
    A server without a rate and without a budget limit has nothing to share, so its limits are always local: each
    process counts its own calls, and waits on its own if the server asks for a pause.
    """
    budget = settings.budget
    is_limited = settings.rate is not None or budget.calls is not None or budget.usd is not None
    if service is None or not is_limited:
        return LocalLimits(server, settings, earlier_calls)
    return RemoteLimits(service, server, usd_per_call=budget.usd_per_call)
