"""The chat workspace of a world: channels with a history, and what one episode posts to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mcprl.world.calendar import NOW
from mcprl.world.chatter import make_channels, make_history, make_user_id
from mcprl.world.draws import Draws
from mcprl.world.facts import Channel, ChatMessage
from mcprl.world.market import open_market

__all__ = ["Workspace", "open_workspace"]

_NOW_S = int(NOW.timestamp())


@dataclass(frozen=True, slots=True)
class _Seeded:
    """What all workspaces of a seed start from; never written to."""

    channels: tuple[Channel, ...]
    by_name: Mapping[str, Channel]
    history: Mapping[str, tuple[ChatMessage, ...]]
    bot: str


@lru_cache(maxsize=16)
def _seeded(seed: int) -> _Seeded:
    channels = make_channels(seed)
    return _Seeded(
        channels=channels,
        by_name={key.lower(): channel for channel in channels for key in (channel.id, channel.name)},
        history=make_history(open_market(seed), channels),
        bot=make_user_id(Draws(seed, "bot")),
    )


class Workspace:
    """The chat of one episode: the history of its seed, which all share, and its own posts, which nobody else sees.

    >>> workspace = open_workspace(7)
    >>> general = workspace.find("#general")
    >>> workspace.post(general.id, "hello") == workspace.history(general.id, 1)[0]
    True
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._seeded = _seeded(seed)
        self._posts: list[ChatMessage] = []

    @property
    def posts(self) -> tuple[ChatMessage, ...]:
        """What this episode posted, oldest first."""
        return tuple(self._posts)

    def channels(self) -> tuple[Channel, ...]:
        return self._seeded.channels

    def find(self, channel: str) -> Channel | None:
        """A channel by its id, its name or its #name, in any case."""
        return self._seeded.by_name.get(channel.strip().removeprefix("#").lower())

    def post(self, channel_id: str, text: str) -> ChatMessage:
        """Add a message of the bot, after all others. An id that no channel has is a KeyError: ask `find` first."""
        self._seeded.history[channel_id]
        # The episode's clock ticks a second a post, so that timestamps are unique and in order.
        message = ChatMessage(
            channel_id=channel_id,
            user=self._seeded.bot,
            text=text,
            timestamp=f"{_NOW_S + len(self._posts)}.000100",
        )
        self._posts.append(message)
        return message

    def history(self, channel_id: str, limit: int) -> tuple[ChatMessage, ...]:
        """The newest messages of a channel, newest first. An id that no channel has is a KeyError."""
        own = tuple(message for message in self._posts if message.channel_id == channel_id)
        return tuple(reversed(self._seeded.history[channel_id] + own))[: max(0, limit)]


def open_workspace(seed: int) -> Workspace:
    """A fresh workspace for one episode."""
    return Workspace(seed)
