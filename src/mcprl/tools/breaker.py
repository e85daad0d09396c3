"""The circuit breaker of one server: after failures in a row it is left alone, then tried with a single call.

    closed ── FAILURES in a row ──▶ open ── REST_S later, one call ──▶ half_open ── it succeeds ──▶ closed
                                        ◀──────────────────────────────────── it fails ──┘

While it is not closed, calls wait: an episode that waits a few seconds is worth more than one that is lost. Libraries
such as purgatory reject them instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Literal

from mcprl.errors import BreakerOpenError, CallDeadlineError, ServerBusyError, ToolServerError

__all__ = ["Breaker", "BreakerState"]


BreakerState = Literal["closed", "open", "half_open"]
FAILURES = 5  # in a row, that open the breaker
REST_S = 5.0  # until one call may try the server again


class Breaker:
    """Whether a server may be called, judged by how its last calls ended.

    async with breaker.guard(patience_s=30.0):
        result = await server.call(...)

    A ToolServerError that leaves the block is a failure, leaving it without an error a success. Neither is said by a
    server that is busy, which is alive, by one call that passed its deadline, by a cancellation or any other exception.
    Calls in flight that fail together are one failure: a server that dies takes all of them with it.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._state: BreakerState = "closed"
        self._failures = 0
        self._failures_in_a_row = 0
        self._rests_until = 0.0
        self._openings = 0
        self._changed = asyncio.Event()

    @property
    def state(self) -> BreakerState:
        """`half_open` is while one call probes the server."""
        return self._state

    @property
    def openings(self) -> int:
        """How often it opened, failed probes included."""
        return self._openings

    @property
    def moment(self) -> tuple[int, int]:
        """How often it has opened, and how many failures it has counted."""
        return self._openings, self._failures

    def guard(self, patience_s: float) -> _Passage:
        """Wait up to `patience_s` for the breaker to let one call through, then watch how it ends.

        Raises BreakerOpenError where it does not in that time.
        """
        return _Passage(self, patience_s)

    async def admit(self, patience_s: float) -> None:
        """Return when a call may be made. Only a passage calls this: it owes the verdict."""
        if self._may_pass():
            return
        deadline = asyncio.get_running_loop().time() + patience_s
        while not self._may_pass():
            await self._wait_for_change(deadline)

    def judge(self, admitted_at: tuple[int, int], *, succeeded: bool | None) -> None:
        """The verdict of a call admitted at that `moment`; None: it has none."""
        openings, failures = admitted_at
        if openings != self._openings:
            # It began before the breaker opened: only the probe says how the server is now.
            return
        if succeeded:
            self._failures_in_a_row = 0
            self._become("closed")
        elif succeeded is None:
            if self._state == "half_open":
                # The rest is over, so the next call takes the place of the probe.
                self._become("open")
        elif failures == self._failures:
            self._failures += 1
            self._failures_in_a_row += 1
            # A probe comes after so many failures: its own is always one too many.
            if self._failures_in_a_row >= FAILURES:
                self._openings += 1
                self._rests_until = asyncio.get_running_loop().time() + REST_S
                self._become("open")

    def _may_pass(self) -> bool:
        if self._state == "open" and asyncio.get_running_loop().time() >= self._rests_until:
            self._become("half_open")
            return True
        return self._state == "closed"

    async def _wait_for_change(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        if now >= deadline:
            raise self._still_open(now)
        until = deadline if self._state == "half_open" else min(deadline, self._rests_until)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()

    def _become(self, state: BreakerState) -> None:
        if state == self._state:
            return
        self._state = state
        # Who waits holds the old event; who comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()

    def _still_open(self, now: float) -> BreakerOpenError:
        return BreakerOpenError(
            f"server {self._server!r} failed {self._failures_in_a_row} calls in a row and is left alone; "
            "a call waited for it as long as it may",
            fix=f"read the server's log; it is tried again {REST_S:g} s after each failure",
            delivered=False,
            retry_after_s=max(0.0, self._rests_until - now),
        )


class _Passage:
    """One call on its way through a breaker."""

    __slots__ = ("_admitted_at", "_breaker", "_patience_s")

    def __init__(self, breaker: Breaker, patience_s: float) -> None:
        self._breaker = breaker
        self._patience_s = patience_s
        self._admitted_at = breaker.moment

    async def __aenter__(self) -> None:
        await self._breaker.admit(self._patience_s)
        self._admitted_at = self._breaker.moment

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            succeeded = True
        elif isinstance(error, ToolServerError) and not isinstance(error, ServerBusyError | CallDeadlineError):
            succeeded = False
        else:
            succeeded = None
        self._breaker.judge(self._admitted_at, succeeded=succeeded)
