"""An episode that the infrastructure failed is run again, so many times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mcprl.errors import GroupIncompleteError
from mcprl.records import LostEpisode

__all__ = ["run_until_kept"]

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
                fix="mend that cause; episodes.max_attempts sets how often an episode is run again",
            )
    return ended
