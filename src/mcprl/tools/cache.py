"""Results of read-only tools, cached within a number of bytes, and one request for equal calls in flight."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Flights", "ResultCache"]


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    """Work under way, how many callers still wait for it, and where it failed."""

    __slots__ = ("task", "trace", "waiters")

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0
        self.trace: TracebackType | None = None


class Flights(Generic[K, V]):
    """The work under way, by key.

    The work has a task of its own, so a caller who is cancelled takes nothing from the others; when the last one is
    cancelled, the work is too, and has ended before that caller is released. An exception is raised to every waiter.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def join(self, key: K, start: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """The result of the work under `key`, started here where none is under way; and whether it already was."""
        flight = self._flights.get(key)
        shared = flight is not None and not flight.task.done()
        if flight is None or not shared:
            flight = self._launch(key, start)
        flight.waiters += 1
        try:
            # Unlike an await of the task itself, this does not cancel it with us.
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                await self._abandon(key, flight)
        error = flight.task.exception()
        if error is not None:
            # A task gives its traceback to the first who asks; here each waiter sees where the work failed.
            raise error.with_traceback(flight.trace)
        return flight.task.result(), shared

    def _launch(self, key: K, start: Callable[[], Awaitable[V]]) -> _Flight[V]:
        flight = _Flight(asyncio.ensure_future(start()))
        self._flights[key] = flight
        # Before any waiter's own: when one of them wakes, the key is free.
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: K, flight: _Flight[V]) -> None:
        self._forget(key, flight)
        # Asking for the exception marks it as seen: where every waiter was cancelled, nobody is left to be told.
        if not flight.task.cancelled() and (error := flight.task.exception()) is not None:
            flight.trace = error.__traceback__

    async def _abandon(self, key: K, flight: _Flight[V]) -> None:
        # Forgotten first: who comes while it is ending must not join it.
        self._forget(key, flight)
        flight.task.cancel()
        await asyncio.wait((flight.task,))

    def _forget(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


T = TypeVar("T")

_64_MIB = 64 * 1024 * 1024


class _Entry(NamedTuple, Generic[T]):
    value: T
    size: int
    expires: float


class ResultCache(Generic[K, T]):
    """Values by key. The one not used for longest goes when there are too many bytes; an expired one always goes.

    A value counts from when it was put: being read does not make it younger.
    """

    def __init__(self, ttl_s: float, max_bytes: int = _64_MIB, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[K, _Entry[T]] = OrderedDict()
        # The same keys from oldest to youngest: the first to expire stands first, so looking at one is enough.
        self._by_age: dict[K, None] = {}
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """What the entries held now weigh together."""
        return self._bytes

    def get(self, key: K) -> T | None:
        """The value, or None where there is none or it has expired."""
        self._drop_expired()
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: K, value: T, size: int) -> None:
        """Keep a value. `size` is what it weighs in bytes, its key included; one above the limit is not kept."""
        self._drop_expired()
        if key in self._entries:
            self._drop(key)
        if size > self._max_bytes:
            return
        while self._bytes + size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        self._entries[key] = _Entry(value, size, self._clock() + self._ttl_s)
        self._by_age[key] = None
        self._bytes += size

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._by_age:
            oldest = next(iter(self._by_age))
            if self._entries[oldest].expires > now:
                return
            self._drop(oldest)

    def _drop(self, key: K) -> None:
        self._bytes -= self._entries.pop(key).size
        del self._by_age[key]
