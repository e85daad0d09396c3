"""An event loop in a thread of its own, for callers that know none: SkyRL calls environments from a pool of threads.

Whoever calls waits; the loop does not. So as many calls are under way at once as there are threads that wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

__all__ = ["BackgroundLoop", "Held"]

T = TypeVar("T")


class BackgroundLoop:
    """An event loop that runs until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: at the end of a process, Python waits for all other threads before anyone is told to close.
        self._thread = threading.Thread(target=self._loop.run_forever, name="mcprl-tools", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, or what it raises. To be called from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End the loop. What is still under way there is cancelled."""
        self.run(_cancel_all_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Held(Generic[T]):
    """A context that one task enters, holds and leaves, whichever tasks ask for it: time-outs inside need that."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._leaving = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None

    async def enter(self) -> T:
        """The context's value, or what entering it raises. Whoever is cancelled here leaves nothing entered."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holder = holder = asyncio.create_task(self._hold(entered))
        try:
            await asyncio.wait({holder, entered}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            raise
        if not entered.done():
            holder.result()  # raises: it ended before it had entered
        return entered.result()

    def let_go(self) -> None:
        """Leave soon, without anyone waiting for it."""
        self._leaving.set()

    async def leave(self) -> None:
        """Leave, and wait until that is done. A second time does nothing."""
        self._leaving.set()
        if self._holder is not None:
            holder, self._holder = self._holder, None
            await holder

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._context as value:
            entered.set_result(value)
            await self._leaving.wait()
