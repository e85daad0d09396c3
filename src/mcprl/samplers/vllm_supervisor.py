"""A vLLM server that is started again when it ends, and handed out only while it samples from the weights in force."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from mcprl.errors import McprlError, SamplerLostError
from mcprl.samplers.vllm_process import VllmProcess

__all__ = ["SupervisedVllm"]

_logger = logging.getLogger(__name__)


class SupervisedVllm:
    """Entered: a server runs. Where it ends, another is started and given its weights, and who waits gets that one.

    After `max_restarts` of them in a row with no turn sampled in between, who waits gets a SamplerLostError, and so
    does everyone who asks later.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[VllmProcess]],
        put_weights: Callable[[VllmProcess], Awaitable[None]],
        *,
        max_restarts: int,
    ) -> None:
        self._start = start
        self._put_weights = put_weights
        self._max_restarts = max_restarts
        self._restarts_in_a_row = 0
        self._server: VllmProcess | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._over = False
        self._lost: SamplerLostError | None = None
        self._changed = asyncio.Condition()
        self.restarts = 0
        """How often a server was started in the place of another."""

    async def __aenter__(self) -> SupervisedVllm:
        self._server = await self._start()
        self._supervision = asyncio.create_task(self._supervise(self._server), name="vllm-supervision")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervision
        if self._server is not None:  # the supervision was cancelled before it began
            await self._server.stop()
            self._server = None

    @property
    def running(self) -> VllmProcess:
        """The server that runs now."""
        if self._supervision is None:
            raise RuntimeError("the sampler is not running: enter it with `async with`")
        if self._server is None or not self._can_be_asked:
            raise SamplerLostError("vLLM does not run at the moment", fix="wait until it has been started again")
        return self._server

    async def ready(self) -> VllmProcess:
        """A server that runs and has its weights: at once, or as soon as there is one again."""
        if self._supervision is not None and not self._can_be_asked:
            async with self._changed:
                await self._changed.wait_for(lambda: self._can_be_asked or self._over)
        if self._over:
            lost = self._lost or SamplerLostError("vLLM is not started again", fix="sample while it is entered")
            raise SamplerLostError(lost.what, fix=lost.fix)
        return self.running

    @property
    def _can_be_asked(self) -> bool:
        return self._server is not None and self._server.may_be_asked

    def note_turn(self) -> None:
        """A turn was sampled: what ended the servers before this one does not hold the run up."""
        self._restarts_in_a_row = 0

    async def _supervise(self, server: VllmProcess) -> None:
        try:
            while True:
                try:
                    exit_code = await server.watch()
                    self._server = None
                    _logger.warning("vLLM (process %d) ended with exit code %d", server.pid, exit_code)
                finally:
                    await server.stop()
                reason = f"vLLM ended with exit code {exit_code}:\n{server.log_tail()}"
                server = await self._start_again(reason, log=str(server.log))
                self._server = server
                await self._tell_all()
        except SamplerLostError as error:
            self._lost = error
        finally:
            self._server, self._over = None, True
            await self._tell_all()

    async def _start_again(self, reason: str, *, log: str) -> VllmProcess:
        while self._restarts_in_a_row < self._max_restarts:
            self._restarts_in_a_row += 1
            self.restarts += 1
            _logger.warning("vLLM is started again, %d of %d", self._restarts_in_a_row, self._max_restarts)
            try:
                async with contextlib.AsyncExitStack() as on_failure:
                    server = await self._start()
                    on_failure.push_async_callback(server.stop)
                    await self._put_weights(server)
                    on_failure.pop_all()
            except McprlError as error:
                reason = str(error)
                _logger.warning("vLLM could not be started again: %s", error.what)
            else:
                return server
        raise SamplerLostError(
            f"vLLM was started again {self._restarts_in_a_row} times without sampling a turn. Last: {reason}",
            fix=f"read its log at {log}; look for memory that ran out; sampling.vllm.max_restarts is the limit",
        )

    async def _tell_all(self) -> None:
        async with self._changed:
            self._changed.notify_all()
