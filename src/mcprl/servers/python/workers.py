"""A pool of workers that are ready before they are needed, each used once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any

from mcprl.errors import SandboxLostError
from mcprl.servers.python.launch import Kind, Launch
from mcprl.servers.python.process import WorkerProcess

__all__ = ["WorkerPool"]

_logger = logging.getLogger(__name__)

_START_S = 20.0
_TRIES = 3


class WorkerPool:
    """Keeps so many `spares` of each kind ready, and starts the next when one is taken.

    No more than `at_once` programs run at a time, and no more than `starts_at_once` workers start: each start is work
    for a processor. Use it as an asynchronous context manager; leaving it ends every worker.
    """

    def __init__(self, launch: Launch, *, spares: Mapping[Kind, int], at_once: int, starts_at_once: int) -> None:
        self._launch = launch
        self._spares = spares
        self._ready: dict[Kind, deque[WorkerProcess]] = {kind: deque() for kind in spares}
        self._waiting: dict[Kind, deque[asyncio.Future[WorkerProcess]]] = {kind: deque() for kind in spares}
        self._starting = dict.fromkeys(spares, 0)
        self._failures = dict.fromkeys(spares, 0)
        self._slots = asyncio.Semaphore(at_once)
        self._starts = asyncio.Semaphore(starts_at_once)
        self._beginning: set[WorkerProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __aenter__(self) -> WorkerPool:
        for kind in self._spares:
            self._refill(kind)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for worker in self._beginning:
            worker.kill()
        for ready in self._ready.values():
            while ready:
                self._end(ready.popleft())
        while self._tasks:
            await asyncio.wait(self._tasks)

    @contextlib.asynccontextmanager
    async def worker(self, kind: Kind) -> AsyncGenerator[WorkerProcess]:
        """A ready worker for one program. It is ended on the way out, with everything in its sandbox."""
        async with self._slots:
            worker = await self._take(kind)
            try:
                yield worker
            finally:
                self._end(worker)

    async def full(self) -> None:
        """Wait until every spare is ready: for measuring, and for tests."""
        while any(len(self._ready[kind]) < count for kind, count in self._spares.items()):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, kind: Kind) -> WorkerProcess:
        ready = self._ready[kind]
        while ready:
            worker = ready.popleft()
            if worker.is_alive():
                self._refill(kind)
                return worker
            self._end(worker)
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append(turn)
        self._failures[kind] = 0
        self._refill(kind)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end(turn.result())
            raise

    def _refill(self, kind: Kind) -> None:
        waiting = sum(not turn.done() for turn in self._waiting[kind])
        missing = self._spares[kind] + waiting - len(self._ready[kind]) - self._starting[kind]
        if self._is_closing or self._failures[kind] >= _TRIES:
            return
        for _ in range(missing):
            self._starting[kind] += 1
            self._spawn(self._start(kind))

    async def _start(self, kind: Kind) -> None:
        try:
            async with self._starts:
                if self._is_closing:
                    return
                worker = WorkerProcess(self._launch, kind)
                self._beginning.add(worker)
                try:
                    await worker.ready(_START_S)
                except SandboxLostError:
                    self._end(worker)
                    raise
                finally:
                    self._beginning.discard(worker)
        except SandboxLostError as error:
            self._note_failure(kind, error)
        else:
            self._failures[kind] = 0
            self._hand_over(worker)
        finally:
            self._starting[kind] -= 1
        self._refill(kind)

    def _hand_over(self, worker: WorkerProcess) -> None:
        waiting = self._waiting[worker.kind]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        ready = self._ready[worker.kind]
        if self._is_closing or len(ready) >= self._spares[worker.kind]:  # who waited for it has given up
            self._end(worker)
        else:
            ready.append(worker)

    def _note_failure(self, kind: Kind, error: SandboxLostError) -> None:
        """After some failures in a row, tell those who wait; the next who asks tries again."""
        self._failures[kind] += 1
        if not self._is_closing:
            _logger.warning("%s", error)
        if self._failures[kind] >= _TRIES:
            waiting = self._waiting[kind]
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_exception(error)

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._spawn(worker.gone())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
