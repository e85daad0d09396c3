"""Chat in a real Slack workspace, through Slack's Web API."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from mcprl.servers.json_fields import JsonFields
from mcprl.servers.slack.answers import NAME, checked_answer, refusal
from mcprl.servers.upstream import Upstream, UpstreamRefusal, base_url, required_key, upstream_fault
from mcprl.world.facts import Channel, ChatMessage

__all__ = ["LiveChat", "slack_upstream"]

_CHANNELS_LIVE_S = 60.0
_PAGE = 200
_MAX_PAGES = 100
_METADATA = "response_metadata"
_TIMESTAMP = re.compile(r"[0-9]{1,11}\.[0-9]{1,6}")


def slack_upstream() -> Upstream:
    """Slack at SLACK_BASE_URL, or at its own address, with the token SLACK_BOT_TOKEN."""
    token = required_key(NAME, "SLACK_BOT_TOKEN")
    address = base_url("SLACK_BASE_URL", "https://slack.com/api")
    return Upstream(NAME, address, headers={"authorization": f"Bearer {token}"})


class LiveChat:
    """A real workspace.

    Its channels are kept for a minute: every post and every history needs them to know a channel by its name, and
    Slack allows about twenty listings a minute, fewer than parallel episodes would make.
    """

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._clock = clock
        self._listing: asyncio.Task[tuple[Channel, ...]] | None = None
        self._listed_until = clock()
        self._foreign: frozenset[str] = frozenset()
        self._own_user: str | None = None

    async def channels(self) -> tuple[Channel, ...]:
        """The public channels that are not archived."""
        listing = self._listing
        if listing is None or (listing.done() and self._clock() >= self._listed_until):
            listing = self._listing = asyncio.ensure_future(self._list_channels())
            listing.add_done_callback(_mark_as_seen)
        # Unlike an await of the task itself, this does not cancel it with us: other episodes wait for it, too.
        await asyncio.wait((listing,))
        return listing.result()

    async def post(self, channel: Channel, text: str) -> ChatMessage:
        """Really send a message, for everyone in the channel to see."""
        answer = await self._call("chat.postMessage", body={"channel": channel.id, "text": text})
        message = answer.fields("message")
        return ChatMessage(channel_id=channel.id, user=_user(message), text=text, timestamp=_timestamp(answer))

    async def history(self, channel: Channel, limit: int) -> tuple[ChatMessage, ...]:
        answer = await self._call("conversations.history", params={"channel": channel.id, "limit": limit})
        return tuple(_message(channel.id, message) for message in answer.objects("messages"))[:limit]

    async def refuse_unless_member(self, channel: Channel) -> None:
        """Raise what Slack would say to a post in a channel that the bot has not joined."""
        await self.channels()
        if channel.id in self._foreign:
            raise refusal("not_in_channel")

    async def own_user(self) -> str:
        """The id that the bot's own messages carry."""
        if self._own_user is None:
            self._own_user = (await self._call("auth.test")).text("user_id")
        return self._own_user

    async def _list_channels(self) -> tuple[Channel, ...]:
        listed: list[JsonFields] = []
        params: dict[str, str | int] = {"types": "public_channel", "exclude_archived": "true", "limit": _PAGE}
        for _ in range(_MAX_PAGES):
            answer = await self._call("conversations.list", params=params)
            listed += answer.objects("channels")
            cursor = answer.fields(_METADATA).maybe_text("next_cursor") if _METADATA in answer else None
            if not cursor:
                break
            params["cursor"] = cursor
        else:
            raise upstream_fault(NAME, f"lists more than {_MAX_PAGES} pages of channels")
        channels = tuple(map(_channel, listed))
        self._foreign = frozenset(c.text("id") for c in listed if "is_member" in c and not c.flag("is_member"))
        self._listed_until = self._clock() + _CHANNELS_LIVE_S
        return channels

    async def _call(
        self,
        method: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> JsonFields:
        try:
            if body is not None:
                return checked_answer(method, await self._upstream.post(f"/{method}", body))
            return checked_answer(method, await self._upstream.get(f"/{method}", params))
        except UpstreamRefusal as refused:
            # Slack refuses in the body of a 200; such a status says that this address is not Slack's.
            raise upstream_fault(NAME, f"does not answer {method} as Slack does ({refused})") from None


def _mark_as_seen(listing: asyncio.Task[tuple[Channel, ...]]) -> None:
    """Look at its error, because all who waited may have been cancelled, and nobody is left to be told."""
    if not listing.cancelled():
        listing.exception()


def _channel(listed: JsonFields) -> Channel:
    purpose = listed.fields("purpose").maybe_text("value") if "purpose" in listed else None
    return Channel(id=listed.text("id"), name=listed.text("name"), purpose=purpose or "")


def _message(channel_id: str, message: JsonFields) -> ChatMessage:
    text = message.maybe_text("text") or ""
    # Slack sends these three characters escaped, and only these.
    for escaped, plain in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(escaped, plain)
    return ChatMessage(channel_id=channel_id, user=_user(message), text=text, timestamp=_timestamp(message))


def _user(message: JsonFields) -> str:
    """Whose message it is: a member, or else an app or a bot."""
    return message.maybe_text("user") or message.maybe_text("username") or message.maybe_text("bot_id") or "unknown"


def _timestamp(message: JsonFields) -> str:
    timestamp = message.text("ts")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise message.wrong("ts", "a timestamp")
    return timestamp
