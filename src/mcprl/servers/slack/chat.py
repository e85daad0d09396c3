"""What the chat tools need of a workspace, and how a channel is found in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from mcprl.world.facts import Channel, ChatMessage

__all__ = ["Chat", "find_channel", "newest_first"]


class Chat(Protocol):
    """A workspace as one episode sees it. What it refuses is a ToolError, a failure of its own an MCPError."""

    async def channels(self) -> tuple[Channel, ...]: ...

    async def post(self, channel: Channel, text: str) -> ChatMessage: ...

    async def history(self, channel: Channel, limit: int) -> tuple[ChatMessage, ...]:
        """At most `limit` messages, newest first."""
        ...


def find_channel(channels: Sequence[Channel], wanted: str) -> Channel | None:
    """A channel by its id, its name or #name, whatever the case.

    find_channel([Channel(id="C0GENERAL1", name="general")], "#General")   # that channel
    """
    wanted = wanted.strip().removeprefix("#").casefold()
    by_name = {channel.name.casefold(): channel for channel in channels}
    by_id = {channel.id.casefold(): channel for channel in channels}
    return by_id.get(wanted) or by_name.get(wanted)


def newest_first(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Messages in the order of their timestamps, which are numbers of seconds with six digits after the point."""
    return tuple(sorted(messages, key=_age_order, reverse=True))


def _age_order(message: ChatMessage) -> tuple[int, int]:
    # As two whole numbers: a float has too few digits to tell all microseconds apart.
    seconds, _, fraction = message.timestamp.partition(".")
    return int(seconds), int(fraction.ljust(6, "0") or 0)
