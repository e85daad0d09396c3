"""Answers of read-only tools, kept for a while and within a number of bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["ResultCache"]

K = TypeVar("K", bound=Hashable)
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
