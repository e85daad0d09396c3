"""A cache of results, bounded in bytes, and single flight: one request for equal calls in flight."""

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
    """Work in progress, the number of callers that wait for it, and the traceback if it failed."""

    __slots__ = ("task", "trace", "waiters")

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0
        self.trace: TracebackType | None = None


class Flights(Generic[K, V]):
    """Work in progress, by key.

    The work runs in its own task, so a cancelled caller does not affect the others. When the last caller is cancelled,
    the work is too, and has ended before that caller returns. An exception is raised in every caller.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def join(self, key: K, start: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """The result of the work under `key`, and whether it was already in progress; if not, it is started."""
        flight = self._flights.get(key)
        shared = flight is not None and not flight.task.done()
        if flight is None or not shared:
            flight = self._launch(key, start)
        flight.waiters += 1
        try:
            # Unlike awaiting the task itself, this does not cancel it if we are cancelled.
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                await self._abandon(key, flight)
        error = flight.task.exception()
        if error is not None:
            # Each re-raise would extend the traceback: start again from where the work failed.
            raise error.with_traceback(flight.trace)
        return flight.task.result(), shared

    def _launch(self, key: K, start: Callable[[], Awaitable[V]]) -> _Flight[V]:
        flight = _Flight(asyncio.ensure_future(start()))
        self._flights[key] = flight
        # Runs before any caller wakes, so the key is free by then.
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: K, flight: _Flight[V]) -> None:
        self._forget(key, flight)
        # Retrieves the exception, because all callers may have been cancelled.
        if not flight.task.cancelled() and (error := flight.task.exception()) is not None:
            flight.trace = error.__traceback__

    async def _abandon(self, key: K, flight: _Flight[V]) -> None:
        # Removed first: a caller that comes while it is ending must not join it.
        self._forget(key, flight)
        flight.task.cancel()
        await asyncio.wait((flight.task,))

    def _forget(self, key: K, flight: _Flight[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]


_64_MIB = 64 * 1024 * 1024


class _Entry(NamedTuple, Generic[V]):
    value: V
    size: int
    expires: float


class ResultCache(Generic[K, V]):
    """Values by key. Expired values are dropped, and the least recently used if there are too many bytes.

    A value expires `ttl_s` after `put`; reading it does not extend that.
    """

    def __init__(self, ttl_s: float, max_bytes: int = _64_MIB, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        # The same keys in the order of expiry.
        self._by_age: dict[K, None] = {}
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """The size of all entries."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """The value; None if there is none or it has expired."""
        self._drop_expired()
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value. `size` is in bytes and includes the key; a value above the limit is not stored."""
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
