"""Rates and budgets, of one process or of many.

A route asks its `Limits` before each call. Where a run plays in one process they are that process's own. Where it plays
in several, each of which has a toolbox, a vendor still counts all calls together: then one `SharedLimits` holds the
limits of every server, and every route asks it through `RemoteLimits`.

    service = SharedLimits(limit_settings(config))                # once in a run
    open_toolbox(config, log_dir=logs, limits=service)         # in each process, over a LimitsService

Whatever happens on the way between them, a limit is not exceeded: what a process took and could not give back stays
taken, a place in the rate until it expires and a call of the budget for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol, TypeVar

from mcprl.config import BudgetSettings, RateSettings, ServersConfig, ServerSettings
from mcprl.errors import (
    BudgetExceededError,
    InfrastructureError,
    McprlError,
    ServerFileError,
    WorkerLostError,
    did_you_mean,
)
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
    "limits_lost",
    "make_limits",
]


class Budget:
    """Counts each delivery to a server and refuses the first that would exceed a limit.

    Money is counted in decimal, as it is written in the configuration: three calls at 0.1 cost 0.3, not
    0.30000000000000004.
    """

    def __init__(self, server: str, settings: BudgetSettings) -> None:
        self._server = server
        self._max_calls = settings.calls
        # Through the shortest text that means the float: the very digits the user wrote.
        self._max_usd = None if settings.usd is None else Decimal(str(settings.usd))
        self._price = Decimal(str(settings.usd_per_call))
        self._calls = 0

    @property
    def calls(self) -> int:
        """Deliveries so far, repeated attempts included."""
        return self._calls

    @property
    def usd(self) -> float:
        """What they cost."""
        return float(self._calls * self._price)

    def spend(self) -> None:
        """Count the delivery that is about to be made, or raise BudgetExceededError and count nothing."""
        calls = self._calls + 1
        if self._max_calls is not None and calls > self._max_calls:
            raise self._exceeded(f"{self._calls:,} of {self._max_calls:,} calls", "calls")
        if self._max_usd is not None and calls * self._price > self._max_usd:
            raise self._exceeded(
                f"{self._calls * self._price:f} of {self._max_usd:f} USD at {self._price:f} a call", "usd"
            )
        self._calls = calls

    def refund(self) -> None:
        """Take back one `spend` whose delivery provably was not made."""
        assert self._calls > 0
        self._calls -= 1

    def _exceeded(self, spent: str, setting: str) -> BudgetExceededError:
        return BudgetExceededError(
            f"the next call would exceed the budget of server {self._server!r}: the run has used {spent}",
            fix=f"raise servers.settings.{self._server}.budget.{setting}, or make a shorter run",
        )


class RateLimit:
    """The gate before a server. Who came first passes first; one who is cancelled while waiting uses up nothing.

    async with limit.passage():
        answer = await server.call(...)
    """

    def __init__(self, settings: RateSettings | None) -> None:
        self._per_s = settings.per_s if settings is not None else 0.0
        self._places = asyncio.Semaphore(settings.calls) if settings is not None else None
        self._paused_until = 0.0
        # A lock is handed on in the order of asking. Its holder is the one whose turn is next.
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    def passage(self) -> _Passage:
        """Waits until the next call may be made; inside, the call is on its way."""
        return _Passage(self)

    def pause(self, seconds: float) -> None:
        """Let nobody pass for so long from now, as Retry-After asks. A longer pause under way stays."""
        self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + seconds)

    async def take_place(self) -> asyncio.TimerHandle | None:
        """Wait for a place. Gives back the timer that frees it at the latest. A passage and the service call this."""
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
            await places.acquire()  # at once: it is not locked
        return None if places is None else loop.call_later(2 * self._per_s, places.release)

    def free_place(self, latest: asyncio.TimerHandle) -> None:
        """The call is answered: its place is free a period from now, or at `latest`. Too late, it changes nothing."""
        loop = asyncio.get_running_loop()
        assert self._places is not None
        if loop.time() + self._per_s < latest.when():
            latest.cancel()
            loop.call_later(self._per_s, self._places.release)

    async def _wait_for_place(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._places is not None:
            await self._places.acquire()
        try:
            # Again and again: a pause may be prolonged meanwhile, and a timer may fire a little early.
            while (delay_s := self._paused_until - loop.time()) > 0:  # noqa: ASYNC110 - it is time that is waited for
                await asyncio.sleep(delay_s)
        except asyncio.CancelledError:
            if self._places is not None:
                self._places.release()
            raise


class _Passage:
    """One call on its way through the gate."""

    __slots__ = ("_latest", "_limit")

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._latest: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._latest = await self._limit.take_place()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._latest is not None:
            self._limit.free_place(self._latest)


T = TypeVar("T")


class Limits(Protocol):
    """What a route needs to know of its server's limits."""

    @property
    def calls(self) -> int:
        """Deliveries that were counted through here and not given back."""
        ...

    @property
    def usd(self) -> float:
        """What they cost."""
        ...

    async def spend(self) -> None:
        """Count the delivery that is about to be made, or raise BudgetExceededError and count nothing."""
        ...

    async def refund(self) -> None:
        """Take back one `spend` whose delivery provably was not made."""
        ...

    def passage(self) -> AbstractAsyncContextManager[None]:
        """Waits until the next call may be made; inside, the call is on its way."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let nobody pass for so long from now."""
        ...

    async def settle(self) -> None:
        """Return when everything that was given back has arrived."""
        ...


class LimitsService(Protocol):
    """The limits of every server, asked from afar. `SharedLimits` is one; another carries the questions to its process.

    One that cannot be reached raises an InfrastructureError, such as `limits_lost` makes, or the OSError or EOFError of
    its line. BudgetExceededError comes back as itself. A question whose asker is cancelled is cancelled at the service.
    """

    async def spend(self, server: str) -> None:
        """Count one delivery, or raise BudgetExceededError and count nothing."""
        ...

    async def refund(self, server: str) -> None:
        """Take back one `spend`."""
        ...

    async def take_place(self, server: str) -> int | None:
        """Wait until the next call may be made. The ticket to free it with; None where there is no rate to keep."""
        ...

    async def free_place(self, server: str, ticket: int) -> None:
        """The call of that ticket is answered. One that has expired, or was freed before, changes nothing."""
        ...

    async def pause(self, server: str, seconds: float) -> None:
        """Let nobody pass for so long from now, whoever asks."""
        ...

    async def spent(self, server: str) -> tuple[int, float]:
        """Deliveries so far of all who asked, and what they cost in USD."""
        ...


def limit_settings(config: ServersConfig) -> Mapping[str, ServerSettings]:
    """Of every server that a toolbox of this configuration would start, its settings. Starts none.

    Reads the mcpServers file as the toolbox does, so what is wrong with it is said before a worker is started.
    """
    if config.cassette_mode == "replay":
        return config.settings
    assert config.file is not None
    return {spec.name: spec.settings for spec in load_server_specs(config.file, config.settings, config.env_file)}


def limits_lost(server: str, reason: object) -> WorkerLostError:
    """The error of a service that cannot be asked: nobody knows whether the next call is still allowed."""
    return WorkerLostError(
        f"the process that keeps the limits of server {server!r} for all workers cannot be reached: {reason}",
        fix="see why it ended, then resume the run",
    )


class LocalLimits:
    """The limits of a server that only this process calls."""

    def __init__(self, server: str, settings: ServerSettings) -> None:
        self._budget = Budget(server, settings.budget)
        self._rate = RateLimit(settings.rate)
        self.passage = self._rate.passage

    @property
    def calls(self) -> int:
        return self._budget.calls

    @property
    def usd(self) -> float:
        return self._budget.usd

    async def spend(self) -> None:
        self._budget.spend()

    async def refund(self) -> None:
        self._budget.refund()

    async def pause(self, seconds: float) -> None:
        self._rate.pause(seconds)

    async def settle(self) -> None:
        """Nothing is ever on its way."""


class _Counter:
    """What the service keeps for one server. Tickets are for those who cannot hold a timer of this process."""

    def __init__(self, server: str, settings: ServerSettings) -> None:
        self.budget = Budget(server, settings.budget)
        self.rate = RateLimit(settings.rate)
        self._numbers = itertools.count()
        self._tickets: dict[int, asyncio.TimerHandle] = {}

    @property
    def num_tickets(self) -> int:
        return len(self._tickets)

    async def take_place(self) -> int | None:
        latest = await self.rate.take_place()
        if latest is None:
            return None
        self._forget_expired()
        ticket = next(self._numbers)
        self._tickets[ticket] = latest
        return ticket

    def free_place(self, ticket: int) -> None:
        latest = self._tickets.pop(ticket, None)
        if latest is not None:
            self.rate.free_place(latest)

    def _forget_expired(self) -> None:
        # Those whose worker died are never freed. All expire equally long after they were made: the oldest first.
        now = asyncio.get_running_loop().time()
        while self._tickets and self._tickets[oldest := next(iter(self._tickets))].when() <= now:
            del self._tickets[oldest]


class SharedLimits:
    """The limits of every server of a run, in one process, for all who ask.

    service = SharedLimits({"fmp": ServerSettings(rate=RateSettings(calls=300, per_s=60.0))})
    await service.spend("fmp")
    ticket = await service.take_place("fmp")
    ...  # the call is made
    await service.free_place("fmp", ticket)

    A `take_place` that is cancelled while it waits uses up nothing. A place whose ticket is never freed, because its
    worker died, is free again two periods after it was taken. It keeps its counts in memory: a second service would
    begin from nothing, so a run has one, and ends with it.
    """

    def __init__(self, settings: Mapping[str, ServerSettings]) -> None:
        self._counters = {server: _Counter(server, each) for server, each in settings.items()}

    async def spend(self, server: str) -> None:
        self._of(server).budget.spend()

    async def refund(self, server: str) -> None:
        self._of(server).budget.refund()

    async def take_place(self, server: str) -> int | None:
        return await self._of(server).take_place()

    async def free_place(self, server: str, ticket: int) -> None:
        self._of(server).free_place(ticket)

    async def pause(self, server: str, seconds: float) -> None:
        self._of(server).rate.pause(seconds)

    async def spent(self, server: str) -> tuple[int, float]:
        budget = self._of(server).budget
        return budget.calls, budget.usd

    def num_tickets(self, server: str) -> int:
        """Tickets that it remembers: those in use, and expired ones until the next is made."""
        return self._of(server).num_tickets

    def _of(self, server: str) -> _Counter:
        counter = self._counters.get(server)
        if counter is None:
            raise ServerFileError(
                f"a worker asks for the limits of server {server!r}, which the run does not know"
                f"{did_you_mean(server, self._counters)}",
                fix="give every worker the same mcpServers file as the run itself",
            )
        return counter


class RemoteLimits:
    """The limits of a server that other processes call as well, kept by a service.

    `calls` and `usd` are what went through here, so those of all processes add up to what the service has counted. What
    is given back to a service that is gone is lost without an error: an answer is not worth less for it, and the next
    `spend` says that the service is gone.
    """

    def __init__(self, service: LimitsService, server: str, *, usd_per_call: float = 0.0) -> None:
        self._desk = service
        self._server = server
        self._share = Budget(server, BudgetSettings(usd_per_call=usd_per_call))
        # Held here, because a loop holds its tasks only weakly.
        self._errands: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> int:
        return self._share.calls

    @property
    def usd(self) -> float:
        return self._share.usd

    async def spend(self) -> None:
        spending = asyncio.ensure_future(self._ask(self._desk.spend(self._server)))
        try:
            await asyncio.shield(spending)
        except asyncio.CancelledError:
            # Whether it is counted by now only the service knows.
            self._send(self._take_back(spending))
            raise
        self._share.spend()

    async def refund(self) -> None:
        self._share.refund()
        # To the end, also where the caller is cancelled; and waited for, because its next `spend` may need it.
        await asyncio.shield(self._send(self._tell(self._desk.refund(self._server))))

    def passage(self) -> _RemotePassage:
        return _RemotePassage(self)

    async def pause(self, seconds: float) -> None:
        await asyncio.shield(self._send(self._tell(self._desk.pause(self._server, seconds))))

    async def settle(self) -> None:
        while self._errands:
            await asyncio.wait(self._errands)

    async def take_place(self) -> int | None:
        """Wait for a place. Only a passage calls this."""
        return await self._ask(self._desk.take_place(self._server))

    def free_place(self, ticket: int) -> None:
        """The call is answered. The answer does not wait for the service to hear it. Only a passage calls this."""
        self._send(self._tell(self._desk.free_place(self._server, ticket)))

    async def _take_back(self, spending: asyncio.Future[None]) -> None:
        with contextlib.suppress(McprlError):  # refused, or the service is gone: nothing to take back
            await spending
            await self._ask(self._desk.refund(self._server))

    async def _tell(self, told: Awaitable[None]) -> None:
        with contextlib.suppress(InfrastructureError):
            await self._ask(told)

    async def _ask(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except (OSError, EOFError) as error:
            raise limits_lost(self._server, error) from error

    def _send(self, errand: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)
        return task


class _RemotePassage:
    """One call on its way through the gate that the service keeps."""

    __slots__ = ("_limits", "_ticket")

    def __init__(self, limits: RemoteLimits) -> None:
        self._limits = limits
        self._ticket: int | None = None

    async def __aenter__(self) -> None:
        self._ticket = await self._limits.take_place()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ticket is not None:
            self._limits.free_place(self._ticket)


def make_limits(server: str, settings: ServerSettings, service: LimitsService | None) -> Limits:
    """The limits of a server: this process's own, or those that a service keeps for several.

    A server without a rate and without a limit in its budget has nothing to keep over processes, so its calls do not
    pay for asking: each process counts its own, and heeds by itself when the server asks to be left alone.
    """
    budget = settings.budget
    is_limited = settings.rate is not None or budget.calls is not None or budget.usd is not None
    if service is None or not is_limited:
        return LocalLimits(server, settings)
    return RemoteLimits(service, server, usd_per_call=budget.usd_per_call)
