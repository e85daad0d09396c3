"""Making a call again where the infrastructure failed it, and only where that cannot do a thing twice.

The loop is our own: it is shorter than handing the failed first attempt to a library, and a library's process-wide
switch (stamina has one for tests) could turn retries off without a word.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mcprl.config import RetrySettings
from mcprl.errors import BreakerOpenError, ToolServerError

__all__ = ["call_with_retries", "may_repeat"]

T = TypeVar("T")

# A stream of its own: a failure of the network must not shift the random numbers of the run.
_JITTER = random.Random()

# The wait has long reached any sensible limit; a larger power would overflow.
_MAX_DOUBLINGS = 60


def may_repeat(error: ToolServerError, *, read_only: bool, idempotent: bool) -> bool:
    """Whether making the call again is safe: the tool changes nothing by it, or the call never reached the tool.

    A breaker that stayed open is not tried again: the call has already waited for it as long as it may.
    """
    if isinstance(error, BreakerOpenError):
        return False
    return read_only or idempotent or not error.delivered


async def call_with_retries(
    attempt: Callable[[int], Awaitable[T]],
    settings: RetrySettings,
    *,
    repeatable: Callable[[ToolServerError], bool],
) -> T:
    """The result of the first attempt that succeeds; `attempt` is told its number, from 1.

    Only a ToolServerError that is `repeatable` leads to another attempt; everything else passes through at once. The
    wait doubles each time, half of it at random so that calls which failed together do not come back together. A wait
    that the server asks for takes its place; if it is above `settings.max_wait_s`, or the attempts are used up, the
    error is raised.
    """
    number = 1
    while True:
        try:
            return await attempt(number)
        except ToolServerError as error:
            if number >= settings.attempts or not repeatable(error):
                raise
            wait_s = _wait_s(error, number, settings)
            if wait_s > settings.max_wait_s:
                raise
        # Outside the handler: a cancellation during the wait has nothing to do with the error.
        await asyncio.sleep(wait_s)
        number += 1


def _wait_s(error: ToolServerError, number: int, settings: RetrySettings) -> float:
    if error.retry_after_s is not None:
        return error.retry_after_s
    longest_s = min(settings.wait_s * 2.0 ** min(number - 1, _MAX_DOUBLINGS), settings.max_wait_s)
    return longest_s * _JITTER.uniform(0.5, 1.0)
