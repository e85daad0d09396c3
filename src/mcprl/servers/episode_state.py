"""Keeps a separate state for each episode in a server. Each call has the episode's id in its metadata."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from mcp.server.mcpserver import Context

from mcprl.protocol import EPISODE, EPISODE_LIVES_S, EPISODE_SCOPE, SCOPE

S = TypeVar("S")

EPISODIC: dict[str, Any] = {SCOPE: EPISODE_SCOPE}
"""Metadata of a tool that works on the state of one episode: `server.add_tool(tool, meta=EPISODIC)`."""

_DEFAULT_LIFE_S = 3600.0


@dataclass(slots=True)
class _Kept(Generic[S]):
    state: S
    expires: float


class EpisodeStates(Generic[S]):
    """A state per episode, created at its first call and dropped when the episode is certainly over.

    Callers without an episode, such as other MCP clients, share one state that lives as long as the server.
    """

    def __init__(self, make: Callable[[], S], clock: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._clock = clock
        self._kept: dict[str, _Kept[S]] = {}
        # There may be thousands of states, so they are searched only when one has expired.
        self._first_expires = math.inf
        self._shared: S | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, context: Context[Any, Any]) -> S:
        """Return the state that the call in `context` belongs to."""
        meta = cast("dict[str, Any]", context.request_context.meta or {})
        episode = meta.get(EPISODE)
        if not isinstance(episode, str):
            if self._shared is None:
                self._shared = self._make()
            return self._shared
        lives_s = meta.get(EPISODE_LIVES_S)
        return self._of_episode(episode, float(lives_s) if isinstance(lives_s, int | float) else _DEFAULT_LIFE_S)

    def _of_episode(self, episode: str, lives_s: float) -> S:
        now = self._clock()
        if self._first_expires <= now:
            self._kept = {name: kept for name, kept in self._kept.items() if kept.expires > now}
            self._first_expires = min((kept.expires for kept in self._kept.values()), default=math.inf)
        if episode not in self._kept:
            self._kept[episode] = _Kept(self._make(), now + lives_s)
            self._first_expires = min(self._first_expires, now + lives_s)
        return self._kept[episode].state
