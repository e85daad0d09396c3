"""The end of an episode at its deadline: the policy's doing, or the world's."""

from __future__ import annotations

import asyncio
from typing import Final

from mcprl.episodes.environment import Environment
from mcprl.errors import EpisodeDeadlineError
from mcprl.records import StopReason

__all__ = ["end_at_deadline", "longest_life_s"]

# Time beyond its deadline, as a share of it, for asking what an episode that is cut off there left of the world.
_LAST_LOOK: Final = 0.2


def longest_life_s(deadline_s: float) -> float:
    """For how long an episode may need its tools."""
    return deadline_s * (1.0 + _LAST_LOOK)


async def end_at_deadline(
    environment: Environment | None, *, played_s: float, deadline_s: float, late: EpisodeDeadlineError
) -> None:
    """End it as too long where its turns took the time; raise `late` where it waited for something.

    Turns that ended count, each with what it waited for. Where they make up half of the time or more, the episode was
    going on. An `environment` that is not there yet was waited for.
    """
    if environment is None or played_s < deadline_s / 2:
        raise late
    try:
        async with asyncio.timeout(deadline_s * _LAST_LOOK):
            await environment.end(StopReason.DEADLINE)
    except TimeoutError as error:
        raise late from error
