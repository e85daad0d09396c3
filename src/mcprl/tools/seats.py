"""An episode's place at a server that it shares with others but where it has a state of its own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcprl.errors import ServerLostError
from mcprl.protocol import EPISODE, EPISODE_LIVES_S
from mcprl.tools.answers import Answer
from mcprl.tools.connection import ServerConnection
from mcprl.tools.session import Session

__all__ = ["EpisodeKey", "EpisodeSeat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeKey:
    """What a server is told about an episode: a name that nobody can guess, and when it is certainly over.

    EpisodeKey(lives_s=600.0)
    """

    lives_s: float
    id: str = field(default_factory=lambda: secrets.token_hex(16))


class EpisodeSeat:
    """Calls of one episode, always to the same process, and only while that process lives.

    A server that died has lost what the episode did there. To go on with its next life would score the policy for a
    world that forgot half of what it was told, so the episode is lost instead, and run again.
    """

    def __init__(self, connection: ServerConnection, episode: EpisodeKey) -> None:
        self.connection = connection
        self._meta = {EPISODE: episode.id, EPISODE_LIVES_S: episode.lives_s}
        self._session: Session | None = None

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> Answer:
        session = await self.connection.live_session()
        if self._session is None:
            self._session = session
        if session is not self._session:
            raise ServerLostError(
                f"server {self.connection.spec.name!r} died earlier in this episode, and what it held died with it",
                fix=f"see its log {self.connection.log}",
                delivered=False,
            )
        return await self.connection.call(tool, arguments, deadline_s, meta=self._meta)
