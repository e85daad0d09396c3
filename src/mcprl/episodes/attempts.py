"""An episode that the infrastructure failed is run again, so many times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mcprl.errors import GroupIncompleteError, InfrastructureError
from mcprl.records import LostEpisode, Task, ToolCall

__all__ = ["lost_to", "run_until_kept"]

Ended = TypeVar("Ended")


async def run_until_kept(
    episode: str, max_attempts: int, attempt: Callable[[int], Awaitable[Ended | LostEpisode]]
) -> Ended:
    """What the first attempt gives that is not lost; attempts count from 0. Raises GroupIncompleteError after the last.

    kept = await run_until_kept("episode 3 of task a", 3, play_once)
    """
    number = 0
    while isinstance(ended := await attempt(number), LostEpisode):
        number += 1
        if number == max_attempts:
            raise GroupIncompleteError(
                f"{episode} was lost {max_attempts} times, last to {ended.code} {ended.reason}",
                fix="fix that cause; episodes.max_attempts sets how often an episode is run again",
            )
    return ended


def lost_to(error: InfrastructureError, task: Task, member: int, attempt: int) -> LostEpisode:
    """What remains of an attempt that `error` ended."""
    return LostEpisode(
        task_id=task.id,
        member=member,
        attempt=attempt,
        code=error.code,
        reason=error.what,
        turns=tuple(tuple(ToolCall(name=name, arguments=given) for name, given in calls) for calls in error.turns),
    )
