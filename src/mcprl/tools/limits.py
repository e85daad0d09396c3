"""Rate limits and budgets of tool servers, for one process or shared by several.

A route asks its `Limits` before each call. If one process plays the run, it keeps the limits itself. If several do, a
vendor still counts all calls together: one `SharedLimits` then holds the limits of every server, and every route asks
it through `RemoteLimits`.

    service = SharedLimits(limit_settings(config))         # once per run
    open_toolbox(config, log_dir=logs, limits=service)     # in each process, through a LimitsService

A limit is never exceeded, even if messages between the processes are lost: what a process took and could not give back
stays taken, a place in the rate until it expires and a call of the budget until the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Protocol

from mcprl.config import BudgetSettings, RateSettings, ServersConfig, ServerSettings
from mcprl.errors import BudgetExceededError, InfrastructureError, McprlError, ServerFileError, did_you_mean
from mcprl.tools.specs import load_server_specs

__all__ = [
    "Budget",
    "Limits",
    "LimitsService",
    "LocalLimits",
    "RateLimit",
    "RemoteLimits",
    "SharedLimits",
    "limit_settings",
    "make_limits",
]


class Budget:
    """Counts each call sent to a server and refuses the first that would exceed a limit.

    Money is counted in decimal, as it is written in the configuration: three calls at 0.1 cost 0.3, not
    0.30000000000000004.
    """

    def __init__(self, server: str, settings: BudgetSettings) -> None:
        self._server = server
        self._max_calls = settings.calls
        # str gives the shortest text for a float: the digits that the user wrote.
        self._max_usd = None if settings.usd is None else Decimal(str(settings.usd))
        self._price = Decimal(str(settings.usd_per_call))
        self.calls = 0
        """Calls sent so far, including retries."""

    @property
    def usd(self) -> float:
        """What the calls cost."""
        return float(self.calls * self._price)

    def spend(self) -> None:
        """Count the call that is about to be sent, or raise BudgetExceededError and count nothing."""
        calls = self.calls + 1
        if self._max_calls is not None and calls > self._max_calls:
            raise self._exceeded(f"{self.calls:,} of {self._max_calls:,} calls", "calls")
        if self._max_usd is not None and calls * self._price > self._max_usd:
            spent = f"{self.calls * self._price:f} of {self._max_usd:f} USD at {self._price:f} per call"
            raise self._exceeded(spent, "usd")
        self.calls = calls

    def refund(self) -> None:
        """Undo one `spend` whose call was certainly not sent."""
        assert self.calls > 0
        self.calls -= 1

    def _exceeded(self, spent: str, setting: str) -> BudgetExceededError:
        return BudgetExceededError(
            f"the next call would exceed the budget of server {self._server!r}: the run has used {spent}",
            fix=f"raise servers.settings.{self._server}.budget.{setting}, or make a shorter run",
        )


class RateLimit:
    """Lets calls pass in the order they came, no more than the rate allows. A cancelled waiter uses up nothing.

    async with limit.passage():
        answer = await server.call(...)
    """

    def __init__(self, settings: RateSettings | None) -> None:
        self._per_s = settings.per_s if settings is not None else 0.0
        self._places = asyncio.Semaphore(settings.calls) if settings is not None else None
        self._paused_until = 0.0
        # A lock is granted in the order of requests. Its holder is the caller whose turn is next.
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
        """Let no call pass for this long, as Retry-After asks. A longer pause under way stays."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    async def take_place(self) -> asyncio.TimerHandle | None:
        """Wait for a place. Returns the timer that frees it at the latest."""
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
            await places.acquire()  # returns at once: it is not locked
        return None if places is None else loop.call_later(2 * self._per_s, places.release)

    def free_place(self, latest: asyncio.TimerHandle) -> None:
        """The call was answered: free its place a period from now, or at `latest` if that is sooner."""
        loop = asyncio.get_running_loop()
        assert self._places is not None
        if loop.time() + self._per_s < latest.when():
            latest.cancel()
            loop.call_later(self._per_s, self._places.release)

    async def _wait_for_place(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._places is not None:
            await self._places.acquire()
        try:
            # In a loop: the pause may be extended meanwhile, and a timer may fire a little early.
            while (delay_s := self._paused_until - loop.time()) > 0:  # noqa: ASYNC110 - it waits for a time
                await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            if self._places is not None:
                self._places.release()
            raise


class LocalLimits:
    """The limits of a server that only this process calls."""

    def __init__(self, server: str, settings: ServerSettings) -> None:
        self.budget = Budget(server, settings.budget)
        self.rate = RateLimit(settings.rate)
        self.passage = self.rate.passage

    @property
    def calls(self) -> int:
        """Calls that were counted and not refunded."""
        return self.budget.calls

    @property
    def usd(self) -> float:
        """What they cost."""
        return self.budget.usd

    async def spend(self) -> None:
        """Count the call that is about to be sent, or raise BudgetExceededError and count nothing."""
        self.budget.spend()

    async def refund(self) -> None:
        """Undo one `spend` whose call was certainly not sent."""
        self.budget.refund()

    async def pause(self, seconds: float) -> None:
        """Let no call pass for this long."""
        self.rate.pause(seconds)

    async def settle(self) -> None:
        """Return when every refund has arrived: here, at once."""


class LimitsService(Protocol):
    """The limits of every server, for callers in other processes. A client that reaches `SharedLimits` implements it.

    A service that cannot be reached raises an InfrastructureError. BudgetExceededError is passed on as it is. If a
    caller is cancelled, its request is cancelled at the service.
    """

    async def spend(self, server: str) -> None:
        """Count one call, or raise BudgetExceededError and count nothing."""
        ...

    async def refund(self, server: str) -> None:
        """Undo one `spend`."""
        ...

    async def take_place(self, server: str) -> int | None:
        """Wait until the next call may be sent. Returns the ticket to free the place with; None without a rate."""
        ...

    async def free_place(self, server: str, ticket: int) -> None:
        """The call of that ticket was answered. A ticket that expired or was freed before changes nothing."""
        ...

    async def pause(self, server: str, seconds: float) -> None:
        """Let no call of any process pass for this long."""
        ...

    async def spent(self, server: str) -> tuple[int, float]:
        """Calls of all processes so far, and their cost in USD."""
        ...


class SharedLimits:
    """The limits of every server of a run, in one process, for all processes.

    service = SharedLimits({"fmp": ServerSettings(rate=RateSettings(calls=300, per_s=60.0))})
    await service.spend("fmp")
    ticket = await service.take_place("fmp")
    ...  # make the call
    await service.free_place("fmp", ticket)

    A `take_place` that is cancelled while it waits uses up nothing. A place whose ticket is never freed, because its
    worker died, is free again two periods after it was taken. Counts are kept in memory: a run has one service.
    """

    def __init__(self, settings: Mapping[str, ServerSettings]) -> None:
        self._limits = {server: LocalLimits(server, each) for server, each in settings.items()}
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
        # If a worker died, its tickets are never freed. They expire in the order in which they were made.
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
        """Tickets in memory: those in use, and expired ones until the next is made."""
        return len(self._tickets[server])

    def _of(self, server: str) -> LocalLimits:
        limits = self._limits.get(server)
        if limits is None:
            raise ServerFileError(
                f"a worker asks for the limits of server {server!r}, which the run does not know"
                f"{did_you_mean(server, self._limits)}",
                fix="give every worker the same mcpServers file as the run itself",
            )
        return limits


class RemoteLimits:
    """The limits of a server that other processes call as well, kept by a service.

    `calls` and `usd` count what went through here, so the counts of all processes add up to those of the service. A
    refund to a service that is gone is lost without an error: the answer is still good, and the next `spend` raises.
    """

    def __init__(self, service: LimitsService, server: str, *, usd_per_call: float = 0.0) -> None:
        self._service = service
        self._server = server
        self._share = Budget(server, BudgetSettings(usd_per_call=usd_per_call))
        # An event loop holds its tasks only weakly.
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
            # Only the service knows whether it has counted the call.
            self._start(self._take_back(spending))
            raise
        self._share.spend()

    async def refund(self) -> None:
        self._share.refund()
        # Completed even if the caller is cancelled; awaited because the caller's next `spend` may need it.
        await asyncio.shield(self._start(_send(self._service.refund(self._server))))

    @asynccontextmanager
    async def passage(self) -> AsyncGenerator[None]:
        ticket = await self._service.take_place(self._server)
        try:
            yield
        finally:
            if ticket is not None:
                # The answer does not wait for the service.
                self._start(_send(self._service.free_place(self._server, ticket)))

    async def pause(self, seconds: float) -> None:
        await asyncio.shield(self._start(_send(self._service.pause(self._server, seconds))))

    async def settle(self) -> None:
        while self._background:
            await asyncio.wait(self._background)

    async def _take_back(self, spending: asyncio.Future[None]) -> None:
        with contextlib.suppress(McprlError):  # refused, or the service is gone: nothing to take back
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
"""The limits of one server, as its route asks for them."""


def limit_settings(config: ServersConfig) -> Mapping[str, ServerSettings]:
    """The settings of every server that a toolbox of this configuration would start. Starts none.

    Reads the mcpServers file as the toolbox does, so its errors are reported before a worker is started.
    """
    if config.cassette_mode == "replay":
        return config.settings
    assert config.file is not None
    return {spec.name: spec.settings for spec in load_server_specs(config.file, config.settings, config.env_file)}


def make_limits(server: str, settings: ServerSettings, service: LimitsService | None) -> Limits:
    """The limits of a server, kept by this process or by a service for several.

    A server without a rate and without a limit in its budget has nothing to share, so its calls need not ask: each
    process counts its own, and waits by itself if the server asks for a pause.
    """
    budget = settings.budget
    is_limited = settings.rate is not None or budget.calls is not None or budget.usd is not None
    if service is None or not is_limited:
        return LocalLimits(server, settings)
    return RemoteLimits(service, server, usd_per_call=budget.usd_per_call)
