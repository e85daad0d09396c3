"""Many small pools of connections in the place of one large one.

A pool looks at each of its idle connections twice for every request, with a system call, so that a request costs the
more the more are in flight: at 64 as much again as at one. With at most a few requests in each pool it costs the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx2

__all__ = ["SmallPools"]

_MAX_IN_FLIGHT = 8


class SmallPools(httpx2.AsyncBaseTransport):
    """Sends a request through the first pool that has room, and opens another where none has."""

    def __init__(self, make_pool: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make_pool = make_pool
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = next((pool for pool in self._pools if pool.in_flight < _MAX_IN_FLIGHT), None)
        if pool is None:
            pool = _Pool(self._make_pool())
            self._pools.append(pool)
        return await pool.handle(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()


class _Pool:
    """One pool, and how many requests are on their way in it: until their bodies are read or let go."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.in_flight = 0

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.in_flight += 1
        try:
            response = await self.transport.handle_async_request(request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
        except BaseException:
            self.in_flight -= 1
            raise
        response.stream = _CountedBody(response.stream, self)
        return response


class _CountedBody(httpx2.AsyncByteStream):
    """A body that tells its pool when it is closed."""

    def __init__(self, body: httpx2.AsyncByteStream, pool: _Pool) -> None:
        self._body = body
        self._pool: _Pool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.in_flight -= 1
        await self._body.aclose()
