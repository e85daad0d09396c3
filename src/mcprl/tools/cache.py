"""A result cache with a size limit in bytes, and single flight: equal concurrent calls share one request."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    """A running asyncio task, the number of callers that wait for it, and the traceback if it failed."""

    __slots__ = ("task", "trace", "waiters")

    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.waiters = 0
        self.trace: TracebackType | None = None


class Flights(Generic[K, V]):
    """Running tasks by key. Callers with the same key share one task.

    The work runs in its own task, so cancelling one caller does not affect the others. If the last caller is cancelled,
    the task is cancelled too, and it has ended before that caller returns. An exception is raised in every caller.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    async def join(self, key: K, start: Callable[[], Awaitable[V]]) -> tuple[V, bool]:
        """Start the work for `key`, or join it if it is running. Return the result, and True if it was joined."""
        flight = self._flights.get(key)
        shared = flight is not None and not flight.task.done()
        if flight is None or not shared:
            flight = self._launch(key, start)
        flight.waiters += 1
        try:
            # Unlike awaiting the task, this does not cancel the task if the caller is cancelled.
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                await self._abandon(key, flight)
        error = flight.task.exception()
        if error is not None:
            # Each re-raise would extend the traceback, so reset it to the one of the original failure.
            raise error.with_traceback(flight.trace)
        return flight.task.result(), shared

    def _launch(self, key: K, start: Callable[[], Awaitable[V]]) -> _Flight[V]:
        flight = _Flight(asyncio.ensure_future(start()))
        self._flights[key] = flight
        # The callback runs before any caller wakes up, so the key is free by then.
        flight.task.add_done_callback(lambda _: self._land(key, flight))
        return flight

    def _land(self, key: K, flight: _Flight[V]) -> None:
        self._forget(key, flight)
        # Retrieve the exception here, because all callers may have been cancelled.
        if not flight.task.cancelled() and (error := flight.task.exception()) is not None:
            flight.trace = error.__traceback__

    async def _abandon(self, key: K, flight: _Flight[V]) -> None:
        # Remove the flight first: a new caller must not join a task that is being cancelled.
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
    """A cache that drops expired values and, if it exceeds its size limit, the least recently used values.

    A value expires `ttl_s` after `put`, even if it is read in between.
    """

    def __init__(self, ttl_s: float, max_bytes: int = _64_MIB, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        # the same keys, ordered by expiry
        self._by_age: dict[K, None] = {}
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        """The size of all entries in bytes."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return the value, or None if the key is missing or has expired."""
        self._drop_expired()
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.value

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value. `size` is in bytes and includes the key. A value larger than the whole cache is not stored."""
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
