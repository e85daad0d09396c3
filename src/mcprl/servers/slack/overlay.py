"""Chat that reads a real workspace and writes beside it: what an episode posts, nobody else ever sees."""

from __future__ import annotations

import time
from collections.abc import Callable

from mcprl.servers.slack.chat import newest_first
from mcprl.servers.slack.live import LiveChat
from mcprl.world.facts import Channel, ChatMessage

__all__ = ["OverlayChat"]

_MICROSECONDS = 1_000_000


class OverlayChat:
    """The real workspace with the posts of one episode laid over it.

    It refuses what Slack would refuse: a channel that the bot is not in. (Slack lets bots with the scope
    chat:write.public post there; such a bot has to be invited before training.)
    """

    def __init__(self, live: LiveChat, clock: Callable[[], float] = time.time) -> None:
        self._live = live
        self._clock = clock
        self._posts: list[ChatMessage] = []
        self._last_us = 0

    async def channels(self) -> tuple[Channel, ...]:
        return await self._live.channels()

    async def post(self, channel: Channel, text: str) -> ChatMessage:
        await self._live.refuse_unless_member(channel)
        user = await self._live.own_user()
        message = ChatMessage(channel_id=channel.id, user=user, text=text, timestamp=self._next_timestamp())
        self._posts.append(message)
        return message

    async def history(self, channel: Channel, limit: int) -> tuple[ChatMessage, ...]:
        own = [message for message in self._posts if message.channel_id == channel.id]
        return newest_first([*await self._live.history(channel, limit), *own])[:limit]

    def _next_timestamp(self) -> str:
        """Now, but always after the post before: a timestamp is also what tells two messages apart."""
        self._last_us = max(int(self._clock() * _MICROSECONDS), self._last_us + 1)
        return f"{self._last_us // _MICROSECONDS}.{self._last_us % _MICROSECONDS:06d}"
