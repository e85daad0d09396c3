"""The MCP server `slack`: channels, their messages, and posting, live or in an offline world.

Where posts go:

    offline                            into a workspace of the episode's own
    live                               beside the real workspace, which is only read: see `overlay`
    live, with `post_for_real`         to Slack, for everyone to see
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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
from mcprl.servers.making import answer, live_server, offline_server, read_only
from mcprl.servers.slack.chat import Chat, find_channel
from mcprl.servers.slack.live import LiveChat, slack_upstream
from mcprl.servers.slack.offline import OfflineChat
from mcprl.servers.slack.overlay import OverlayChat
from mcprl.world import open_market, open_workspace
from mcprl.world.facts import Channel, ChatMessage

__all__ = ["MAX_MESSAGE_CHARS", "make_server"]

MAX_MESSAGE_CHARS = 40_000
"""The longest message that Slack takes; the same offline, so that a policy learns it there."""

_MAX_HISTORY = 999
_MAX_NAMES_SHOWN = 20
_MAX_WANTED_SHOWN = 80
_MESSAGE_TOOLS = frozenset({"send_slack_message", "get_slack_channel_history"})
_ALL_TOOLS = _MESSAGE_TOOLS | {"list_slack_channels"}
_NEW_YORK = ZoneInfo("America/New_York")

_log = logging.getLogger(__name__)
# The server logs at WARNING; where posts go is worth a line all the same.
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
    """The tools over the workspace that each call belongs to. Names of methods are names of tools."""

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
    """The server, not yet running: of the offline world with that seed, or live for None."""
    if world is None:
        return _make_live_server(post_for_real)
    if post_for_real:
        raise BadValueError(
            "an offline world has no real Slack to post to", fix="leave out --post-for-real, or leave out --world"
        )
    workspaces = EpisodeStates(lambda: OfflineChat(open_workspace(world)))
    server = offline_server("slack", open_market(world).name)
    _add_tools(server, _Tools(workspaces.of), episodic=_ALL_TOOLS, is_live=False)
    return server


def _make_live_server(post_for_real: bool) -> MCPServer:
    upstream = slack_upstream()
    live = LiveChat(upstream)
    server = live_server("slack", upstream)
    if post_for_real:
        _log.warning("messages go to Slack for real, for everyone to see")
        _add_tools(server, _Tools(lambda _: live), episodic=frozenset(), is_live=True)
    else:
        _log.info("Slack is only read; messages stay in their episode (--post-for-real sends them)")
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
