"""The circuit breaker of one server. After FAILURES failures in a row, calls wait; then one call probes the server.

    closed ── FAILURES in a row ──▶ open ── REST_S later, one call ──▶ half_open ── it succeeds ──▶ closed
                                        ◀──────────────────────────────────── it fails ──┘

While the breaker is open or half open, calls wait instead of failing (libraries such as purgatory reject them): waiting
a few seconds is cheaper than losing the episode.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from mcprl.errors import BreakerOpenError, CallDeadlineError, ServerBusyError, ToolServerError

FAILURES = 5  # failures in a row that open the breaker
REST_S = 5.0  # seconds before one call may try the server again


class Breaker:
    """Decides whether a server may be called, based on the outcomes of its last calls.

    async with breaker.guard(patience_s=30.0):
        result = await server.call(...)

    A ToolServerError raised inside the block counts as a failure; a block that ends without an error counts as a
    success. A busy server, a call past its deadline, a cancellation and any other exception count as neither.
    Concurrent calls that fail together count as one failure, because a server that dies fails all of them.
    """

    def __init__(self, server: str) -> None:
        self.state: Literal["closed", "open", "half_open"] = "closed"
        """It is `half_open` while one call probes the server."""
        self.openings = 0
        """The number of times the breaker opened, including after failed probes."""
        self._server = server
        self._failures = 0
        self._failures_in_a_row = 0
        self._rests_until = 0.0
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def guard(self, patience_s: float) -> AsyncGenerator[None]:
        """Wait up to `patience_s` until the breaker lets one call through, then count the outcome of the block.

        Raises BreakerOpenError if the breaker stays open for that long.
        """
        await self._admit(patience_s)
        openings, failures = self.openings, self._failures
        succeeded: bool | None = None
        try:
            yield
            succeeded = True
        except ToolServerError as error:
            if not isinstance(error, ServerBusyError | CallDeadlineError):
                succeeded = False
            raise
        finally:
            # Ignore a call that started before the last opening: only the probe shows the server's current state.
            if openings == self.openings:
                self._judge(succeeded, is_first_failure=failures == self._failures)

    async def _admit(self, patience_s: float) -> None:
        if self._may_pass():
            return
        deadline = asyncio.get_running_loop().time() + patience_s
        while not self._may_pass():
            await self._wait_for_change(deadline)

    def _judge(self, succeeded: bool | None, *, is_first_failure: bool) -> None:
        if succeeded:
            self._failures_in_a_row = 0
            self._become("closed")
        elif succeeded is None:
            if self.state == "half_open":
                # REST_S is over, so the next call becomes the probe.
                self._become("open")
        elif is_first_failure:
            self._failures += 1
            self._failures_in_a_row += 1
            # A probe follows at least FAILURES failures, so a failed probe always opens the breaker again.
            if self._failures_in_a_row >= FAILURES:
                self.openings += 1
                self._rests_until = asyncio.get_running_loop().time() + REST_S
                self._become("open")

    def _may_pass(self) -> bool:
        if self.state == "open" and asyncio.get_running_loop().time() >= self._rests_until:
            self._become("half_open")
            return True
        return self.state == "closed"

    async def _wait_for_change(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            raise self._still_open(now)
        until = deadline if self.state == "half_open" else min(deadline, self._rests_until)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    def _become(self, state: Literal["closed", "open", "half_open"]) -> None:
        if state == self.state:
            return
        self.state = state
        # Current waiters hold the old event; later callers wait on the new one.
        self._changed.set()
        self._changed = asyncio.Event()

    def _still_open(self, now: float) -> BreakerOpenError:
        return BreakerOpenError(
            f"server {self._server!r} failed {self._failures_in_a_row} calls in a row, and its circuit breaker stayed "
            "open until the call's deadline",
            fix=f"read the server's log; the server is tried again {REST_S:g} s after each failure",
            delivered=False,
            retry_after_s=max(0.0, self._rests_until - now),
        )
