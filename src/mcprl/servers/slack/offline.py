"""Chat in the workspace of an offline world."""

from __future__ import annotations

from mcprl.world import Workspace
from mcprl.world.facts import Channel, ChatMessage

__all__ = ["OfflineChat"]


class OfflineChat:
    """The workspace of one episode."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    async def channels(self) -> tuple[Channel, ...]:
        return self._workspace.channels()

    async def post(self, channel: Channel, text: str) -> ChatMessage:
        return self._workspace.post(channel.id, text)

    async def history(self, channel: Channel, limit: int) -> tuple[ChatMessage, ...]:
        return self._workspace.history(channel.id, limit)
