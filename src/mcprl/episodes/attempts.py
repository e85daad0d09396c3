"""An episode that the infrastructure failed is run again, so many times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from mcprl.errors import GroupIncompleteError, InfrastructureError
from mcprl.records import LostEpisode, Task, ToolCall
from mcprl.redact import SECRETS

__all__ = ["lost_to", "run_until_kept"]

Ended = TypeVar("Ended")
_EXCERPT: Final = 120  # characters


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
    """What remains of an attempt that `error` ended. The reason ends with what the policy did last."""
    last = ", ".join(_excerpt(name, given) for name, given in error.turns[-1]) if error.turns else ""
    return LostEpisode(
        task_id=task.id,
        member=member,
        attempt=attempt,
        code=error.code,
        reason=f"{error.what}, after {SECRETS.redact(last)}" if last else error.what,
        turns=tuple(tuple(ToolCall(name=name, arguments=given) for name, given in calls) for calls in error.turns),
    )


def _excerpt(tool: str, arguments: Mapping[str, Any]) -> str:
    """A call in one line: of a long text, such as a program, the beginning and a digest."""
    text = json.dumps(dict(arguments), default=str)
    if len(text) > _EXCERPT:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        text = f"{text[:_EXCERPT]}… ({len(text)} characters, sha256 {digest})"
    return f"{tool} {text}"
