"""Whether a tool server failed because of what the policy did: the same turns are played again on fresh servers.

An episode that the infrastructure failed is run again. A policy that can make a server fail could use that to replace
a bad episode by another one. So before an attempt is given up, its turns are repeated, without sampling anything:

    repeat `TRIALS` times: a call that is known to work, on a fresh lease     it fails: the server is down
                           the turns of the episode, on a fresh lease         an earlier turn fails, or none: by chance
    the last turn failed each time: the policy caused it

A fault that comes by chance, with probability r per turn, is blamed on the policy with probability r to the power of
`TRIALS`. A fault that the policy causes only sometimes is mostly missed here; `episodes.losses` reports it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from mcprl.episodes.environment import Action, Environment, ToolAccess
from mcprl.errors import InfrastructureError, ServerBusyError, ServerLostError, ToolServerError
from mcprl.records import Source, ToolCall, Turn

__all__ = ["TRIALS", "Reproduction"]

TRIALS: Final = 3
_KNOWN_CALLS: Final = 8  # of each tool

Stage = Callable[[], AbstractAsyncContextManager[tuple[Environment, ToolAccess]]]


class Reproduction:
    """Repeats what ended in a fault. One for all episodes of a process, which repeat one after the other.

    Several at once could not be told apart if they share a server.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._known: dict[str, deque[ToolCall]] = {}
        self._one_at_a_time = asyncio.Lock()

    def note(self, turn: Turn) -> None:
        """Remember the calls that a server answered: one of them tells later whether the server is up."""
        for call, seen in zip(turn.calls, turn.observations, strict=True):
            known = self._known.setdefault(call.name, deque(maxlen=_KNOWN_CALLS))
            if seen.server is not None and seen.source is Source.LIVE and call not in known:
                known.append(call)

    async def is_caused(self, actions: Sequence[Action], error: InfrastructureError, stage: Stage) -> bool:
        """Whether the last of these actions made a server fail with `error`. Without evidence it did not.

        `stage` makes the episode anew: its environment, and the tools behind it.
        """
        if not isinstance(error, ToolServerError) or isinstance(error, ServerBusyError):
            return False
        if not (error.delivered or isinstance(error, ServerLostError)):
            return False
        control = self._control(actions[-1].calls, died=isinstance(error, ServerLostError))
        if control is None:
            return False
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(self._deadline_s):
                    for _ in range(TRIALS):
                        if not (await _works(control, stage) and await _fails_again(actions, stage)):
                            return False
            except TimeoutError:
                return False
        return True

    def _control(self, suspects: Sequence[ToolCall], *, died: bool) -> ToolCall | None:
        """A call that worked: of the same tool with other arguments; if the server died, of any tool.

        A tool that answers with errors may have lost something behind it, which other tools do not need.
        """
        names = [call.name for call in suspects]
        same_tool = [call for name in names for call in self._known.get(name, ()) if call not in suspects]
        any_tool = [call for known in self._known.values() for call in known if call not in suspects]
        candidates = same_tool or (any_tool if died else [])
        return candidates[-1] if candidates else None


async def _works(control: ToolCall, stage: Stage) -> bool:
    try:
        async with stage() as (_, access):
            seen = await access.call(control)
    except InfrastructureError:
        return False
    return seen.server is not None and seen.source is Source.LIVE


async def _fails_again(actions: Sequence[Action], stage: Stage) -> bool:
    """Whether the last of the actions ends in a fault of the server, and no earlier one does."""
    try:
        async with stage() as (environment, _):
            for action in actions[:-1]:
                await environment.step(action)
            try:
                await environment.step(actions[-1])
            except ToolServerError as error:
                return not isinstance(error, ServerBusyError)
    except InfrastructureError:
        return False
    return False
