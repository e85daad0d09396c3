"""The MCP server `slack`: channels, their messages, and posting, live or in an offline world.

Where posts go:

    offline                            to a workspace that only the episode sees
    live                               to an overlay of the episode; Slack itself is only read (`OverlayChat`)
    live, with `post_for_real`         to Slack, for everyone to see
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field
from typing_extensions import TypedDict

from mcprl.errors import BadValueError
from mcprl.servers.episode_state import EPISODIC, EpisodeStates
from mcprl_market.making import answer, live_server, offline_server, read_only
from mcprl_market.upstream import (
    UNSAID_WAIT_S,
    JsonFields,
    Upstream,
    UpstreamRefusal,
    base_url,
    required_key,
    upstream_fault,
)
from mcprl_market.world import Workspace, open_market, open_workspace
from mcprl_market.world.facts import Channel, ChatMessage


def find_channel(channels: Sequence[Channel], wanted: str) -> Channel | None:
    """Find a channel by its id, name or #name, ignoring case.

    find_channel([Channel(id="C0GENERAL1", name="general")], "#General")   # that channel
    """
    wanted = wanted.strip().removeprefix("#").casefold()
    by_name = {channel.name.casefold(): channel for channel in channels}
    by_id = {channel.id.casefold(): channel for channel in channels}
    return by_id.get(wanted) or by_name.get(wanted)


def newest_first(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Sort messages by timestamp, newest first. A timestamp is seconds with six decimals."""
    return tuple(sorted(messages, key=_age_order, reverse=True))


def _age_order(message: ChatMessage) -> tuple[int, int]:
    # Compare two integers, because a float cannot distinguish all microseconds.
    seconds, _, fraction = message.timestamp.partition(".")
    return int(seconds), int(fraction.ljust(6, "0") or 0)


NAME = "slack"

_NO_POSTING = "The workspace does not allow this bot to post there. Choose another channel."
_REFUSALS: Mapping[str, str] = {
    "channel_not_found": "Slack finds no such channel. Use list_slack_channels to see which there are.",
    "not_in_channel": "The bot is not a member of that channel. Choose another channel.",
    "is_archived": "That channel is archived. Choose another channel.",
    "msg_too_long": "The message is too long for Slack. Shorten it.",
    "no_text": "The message is empty. Write what to send.",
    "restricted_action": _NO_POSTING,
    "restricted_action_non_threadable_channel": _NO_POSTING,
    "restricted_action_read_only_channel": _NO_POSTING,
    "restricted_action_thread_only_channel": _NO_POSTING,
}
_BUSY = frozenset({"ratelimited", "rate_limited"})
_TOKEN_ERRORS = (
    "access_denied account_inactive accesslimited ekm_access_denied enterprise_is_restricted invalid_auth "
    "missing_scope no_permission not_allowed_token_type not_authed org_login_required team_access_not_granted "
    "token_expired token_revoked two_factor_setup_required"
)
_MAX_CODE_CHARS = 100


def checked_answer(method: str, answer: Any) -> JsonFields:
    """Return the fields of a successful response. Raises an error for any other response."""
    fields = JsonFields(NAME, method, answer)
    if fields.flag("ok"):
        return fields
    code = fields.text("error")[:_MAX_CODE_CHARS]
    if code in _REFUSALS:
        raise refusal(code)
    if code in _BUSY:
        raise upstream_fault(NAME, f"received too many calls ({method}: {code})", UNSAID_WAIT_S)
    if code in _TOKEN_ERRORS.split():
        needed = f", needs {fields.text('needed')}" if "needed" in fields else ""
        raise upstream_fault(NAME, f"refused the token ({method}: {code}{needed})")
    raise upstream_fault(NAME, f"failed ({method}: {code})")


def refusal(code: str) -> ToolError:
    """Return the error for a request that Slack rejects."""
    return ToolError(f"{_REFUSALS[code]} (Slack: {code})")


_CHANNELS_LIVE_S = 60.0
_PAGE = 200
_MAX_PAGES = 100
_METADATA = "response_metadata"
_TIMESTAMP = re.compile(r"[0-9]{1,11}\.[0-9]{1,6}")


def slack_upstream() -> Upstream:
    """Return a Slack client for SLACK_BASE_URL, or the default address, with the token SLACK_BOT_TOKEN."""
    token = required_key(NAME, "SLACK_BOT_TOKEN")
    address = base_url("SLACK_BASE_URL", "https://slack.com/api")
    return Upstream(NAME, address, headers={"authorization": f"Bearer {token}"})


class LiveChat:
    """A real workspace.

    The list of channels is cached for a minute, because every post and every history needs it to look up a channel's
    name. Slack allows about twenty listings per minute, fewer than parallel episodes would make.
    """

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._clock = clock
        self._listing: asyncio.Task[tuple[Channel, ...]] | None = None
        self._listed_until = clock()
        self._foreign: frozenset[str] = frozenset()
        self._own_user: str | None = None

    async def channels(self) -> tuple[Channel, ...]:
        """Return the public channels that are not archived."""
        listing = self._listing
        if listing is None or (listing.done() and self._clock() >= self._listed_until):
            listing = self._listing = asyncio.ensure_future(self._list_channels())
            listing.add_done_callback(_mark_as_seen)
        # Unlike awaiting the task, this does not cancel it if we are cancelled: other episodes may be waiting for it.
        await asyncio.wait((listing,))
        return listing.result()

    async def post(self, channel: Channel, text: str) -> ChatMessage:
        """Send a message that everyone in the channel sees."""
        answer = await self._call("chat.postMessage", body={"channel": channel.id, "text": text})
        message = answer.fields("message")
        return ChatMessage(channel_id=channel.id, user=_user(message), text=text, timestamp=_timestamp(answer))

    async def history(self, channel: Channel, limit: int) -> tuple[ChatMessage, ...]:
        answer = await self._call("conversations.history", params={"channel": channel.id, "limit": limit})
        return tuple(_message(channel.id, message) for message in answer.objects("messages"))[:limit]

    async def refuse_unless_member(self, channel: Channel) -> None:
        """Raise Slack's error for a post to a channel that the bot has not joined."""
        await self.channels()
        if channel.id in self._foreign:
            raise refusal("not_in_channel")

    async def own_user(self) -> str:
        """Return the user id of the bot."""
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
        self, method: str, *, params: Mapping[str, str | int] | None = None, body: Mapping[str, Any] | None = None
    ) -> JsonFields:
        try:
            if body is not None:
                return checked_answer(method, await self._upstream.post(f"/{method}", body))
            return checked_answer(method, await self._upstream.get(f"/{method}", params))
        except UpstreamRefusal as refused:
            # Slack reports a rejection in the body of a 200 response, so this server is not Slack.
            raise upstream_fault(NAME, f"does not answer {method} as Slack does ({refused})") from None


def _mark_as_seen(listing: asyncio.Task[tuple[Channel, ...]]) -> None:
    """Retrieve the task's error. If all waiting callers were cancelled, asyncio would log it as never retrieved."""
    if not listing.cancelled():
        listing.exception()


def _channel(listed: JsonFields) -> Channel:
    purpose = listed.fields("purpose").maybe_text("value") if "purpose" in listed else None
    return Channel(id=listed.text("id"), name=listed.text("name"), purpose=purpose or "")


def _message(channel_id: str, message: JsonFields) -> ChatMessage:
    text = message.maybe_text("text") or ""
    # Slack escapes only these three characters.
    for escaped, plain in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(escaped, plain)
    return ChatMessage(channel_id=channel_id, user=_user(message), text=text, timestamp=_timestamp(message))


def _user(message: JsonFields) -> str:
    """Return the author: a member, or else an app or a bot."""
    return message.maybe_text("user") or message.maybe_text("username") or message.maybe_text("bot_id") or "unknown"


def _timestamp(message: JsonFields) -> str:
    timestamp = message.text("ts")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise message.wrong("ts", "a timestamp")
    return timestamp


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


_MICROSECONDS = 1_000_000


class OverlayChat:
    """The real workspace, plus the posts of one episode, which Slack never sees.

    Like Slack, it rejects posts to channels that the bot is not in. (With the scope chat:write.public, Slack accepts
    such posts; invite such a bot to the channels before training.)
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
        """Return the current time, or a later one if that is taken: a timestamp identifies one message."""
        self._last_us = max(int(self._clock() * _MICROSECONDS), self._last_us + 1)
        return f"{self._last_us // _MICROSECONDS}.{self._last_us % _MICROSECONDS:06d}"


Chat = LiveChat | OverlayChat | OfflineChat

MAX_MESSAGE_CHARS = 40_000
"""Slack's limit. It also applies offline, so that the policy learns it."""

_MAX_HISTORY = 999
_MAX_NAMES_SHOWN = 20
_MAX_WANTED_SHOWN = 80
_MESSAGE_TOOLS = frozenset({"send_slack_message", "get_slack_channel_history"})
_ALL_TOOLS = _MESSAGE_TOOLS | {"list_slack_channels"}
_NEW_YORK = ZoneInfo("America/New_York")

_log = logging.getLogger(__name__)
# The server logs at WARNING, but the destination of posts should always be logged.
_log.setLevel(logging.INFO)

CallContext = Context[Any, Any]


class Channels(TypedDict):
    """The channels of the workspace."""

    channels: list[Channel]


class Sent(TypedDict):
    """A message that was sent."""

    channel_id: str
    channel: str
    timestamp: str


class History(TypedDict):
    """Messages of a channel, newest first."""

    channel_id: str
    channel: str
    messages: list[ChatMessage]


class _Tools:
    """The tools for the workspace of each call. Each public method is a tool of the same name."""

    def __init__(self, chat_of: Callable[[CallContext], Chat]) -> None:
        self._chat_of = chat_of

    async def list_slack_channels(self, context: CallContext) -> Annotated[CallToolResult, Channels]:
        """List the public channels of the Slack workspace."""
        channels = await self._chat_of(context).channels()
        lines = [f"#{c.name} (ID: {c.id})" + (f" - {c.purpose}" if c.purpose else "") for c in channels]
        text = "\n".join([f"**Public Channels ({len(channels)}):**", "", *lines])
        return answer({"channels": channels}, text)

    async def send_slack_message(
        self,
        channel: Annotated[str, Field(description="Channel name or ID")],
        message: Annotated[str, Field(description="Text of the message")],
        context: CallContext,
    ) -> Annotated[CallToolResult, Sent]:
        """Send a message to a Slack channel."""
        if not message.strip():
            raise ToolError("The message is empty. Write what to send.")
        if len(message) > MAX_MESSAGE_CHARS:
            raise ToolError(f"The message has {len(message)} characters; at most {MAX_MESSAGE_CHARS} are allowed.")
        chat = self._chat_of(context)
        target = await _known_channel(chat, channel)
        sent = await chat.post(target, message)
        return answer(
            {"channel_id": target.id, "channel": target.name, "timestamp": sent.timestamp},
            f"✅ Message sent to #{target.name}",
        )

    async def get_slack_channel_history(
        self,
        channel_id: Annotated[str, Field(description="Channel ID or name")],
        context: CallContext,
        limit: Annotated[int, Field(ge=1, le=_MAX_HISTORY, description="How many messages at most")] = 10,
    ) -> Annotated[CallToolResult, History]:
        """Read the latest messages of a Slack channel, newest first."""
        chat = self._chat_of(context)
        channel = await _known_channel(chat, channel_id)
        messages = await chat.history(channel, limit)
        header = f"**History of #{channel.name} (newest first):**"
        lines = [f"[{_time(m)}] @{m.user}: {m.text}" for m in messages]
        text = "\n".join([header, "", *lines]) if messages else f"#{channel.name} has no messages."
        return answer({"channel_id": channel.id, "channel": channel.name, "messages": messages}, text)


def make_server(*, world: int | None = None, post_for_real: bool = False) -> MCPServer:
    """Create the server without starting it. It serves the offline world of seed `world`; None: live data."""
    if world is None:
        return _make_live_server(post_for_real)
    if post_for_real:
        raise BadValueError("an offline world has no real Slack to post to", fix="omit --post-for-real or --world")
    workspaces = EpisodeStates(lambda: OfflineChat(open_workspace(world)))
    server = offline_server("slack", open_market(world).name)
    _add_tools(server, _Tools(workspaces.of), episodic=_ALL_TOOLS, is_live=False)
    return server


def _make_live_server(post_for_real: bool) -> MCPServer:
    upstream = slack_upstream()
    live = LiveChat(upstream)
    server = live_server("slack", upstream)
    if post_for_real:
        _log.warning("messages are posted to the real Slack workspace, where everyone can see them")
        _add_tools(server, _Tools(lambda _: live), episodic=frozenset(), is_live=True)
    else:
        _log.info("Slack is only read; posts are simulated (--post-for-real sends them)")
        overlays = EpisodeStates(lambda: OverlayChat(live))
        _add_tools(server, _Tools(overlays.of), episodic=_MESSAGE_TOOLS, is_live=True)
    return server


def _add_tools(server: MCPServer, tools: _Tools, *, episodic: frozenset[str], is_live: bool) -> None:
    reads = read_only(is_live=is_live)
    writes = ToolAnnotations(
        read_only_hint=False, idempotent_hint=False, destructive_hint=False, open_world_hint=is_live
    )
    for tool, hints in (
        (tools.list_slack_channels, reads),
        (tools.send_slack_message, writes),
        (tools.get_slack_channel_history, reads),
    ):
        server.add_tool(tool, annotations=hints, meta=EPISODIC if tool.__name__ in episodic else None)


async def _known_channel(chat: Chat, wanted: str) -> Channel:
    channels = await chat.channels()
    found = find_channel(channels, wanted)
    if found is None:
        shown = ", ".join(f"#{channel.name} ({channel.id})" for channel in channels[:_MAX_NAMES_SHOWN])
        more = f" and {len(channels) - _MAX_NAMES_SHOWN} more" if len(channels) > _MAX_NAMES_SHOWN else ""
        raise ToolError(f"There is no channel {wanted[:_MAX_WANTED_SHOWN]!r}. The channels are: {shown}{more}.")
    return found


def _time(message: ChatMessage) -> str:
    return datetime.fromtimestamp(float(message.timestamp), _NEW_YORK).strftime("%Y-%m-%d %H:%M:%S")
