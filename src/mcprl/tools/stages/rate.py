"""How often a server is called: never above its rate, and not at all while it asks to be left alone.

At most `calls` arrive at the server in *every* span of `per_s` seconds, wherever it begins, because that is how vendors
count. When a call arrives is not known, only that it is between being made and being answered: so its place is free
again `per_s` after the answer, and for a call that takes longer than `per_s`, two periods after it was made. Calls pass
in bursts after a quiet time. A leaky bucket (aiolimiter) with the same burst lets nearly twice as many through in its
first period; one without a burst makes the first call of every episode wait for nothing.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from mcprl.config import RateSettings

__all__ = ["RateLimit"]


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
        """Wait for a place. Gives back the timer that frees it at the latest. A passage and the desk call this."""
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
