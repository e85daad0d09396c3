"""The overlay of an episode's posts: merged into the history, refused like Slack does, ordered by time."""

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from mcprl_market.slack import OverlayChat, refusal
from mcprl_market.world.facts import Channel, ChatMessage

GENERAL = Channel(id="C1", name="general")
RANDOM = Channel(id="C2", name="random")
CLOSED = Channel(id="C3", name="closed")


def message(text, seconds, channel=GENERAL):
    return ChatMessage(channel_id=channel.id, user="U1", text=text, timestamp=f"{seconds}.000000")


class Workspace:
    """Stands for the real one, which an overlay only reads: it has no way to post."""

    def __init__(self, *messages):
        self.messages = messages

    async def channels(self):
        return (GENERAL, RANDOM, CLOSED)

    async def history(self, channel, limit):
        return tuple(m for m in self.messages if m.channel_id == channel.id)[:limit]

    async def refuse_unless_member(self, channel):
        if channel == CLOSED:
            raise refusal("not_in_channel")

    async def own_user(self):
        return "U0BOT"


def texts(messages):
    return [message.text for message in messages]


async def test_own_posts_are_merged_by_time_and_the_limit_holds_for_both_together():
    chat = OverlayChat(Workspace(message("later", 300), message("earlier", 100)), clock=lambda: 200.0)
    await chat.post(GENERAL, "own")
    assert texts(await chat.history(GENERAL, 10)) == ["later", "own", "earlier"]
    assert texts(await chat.history(GENERAL, 2)) == ["later", "own"]
    assert await chat.history(RANDOM, 10) == ()


async def test_a_post_carries_the_bots_own_id_and_its_channel():
    chat = OverlayChat(Workspace(), clock=lambda: 200.25)
    sent = await chat.post(RANDOM, "hello")
    assert sent == ChatMessage(channel_id="C2", user="U0BOT", text="hello", timestamp="200.250000")
    assert await chat.history(RANDOM, 1) == (sent,)


async def test_posts_of_one_moment_keep_their_order_even_if_the_clock_goes_back():
    moments = iter([500.0, 500.0, 499.0, 0.0, 501.0])
    chat = OverlayChat(Workspace(), clock=lambda: next(moments))
    sent = [await chat.post(GENERAL, text) for text in "abcde"]
    assert len({m.timestamp for m in sent}) == 5
    assert texts(await chat.history(GENERAL, 10)) == list("edcba")


async def test_two_overlays_of_one_workspace_do_not_see_each_other():
    workspace = Workspace(message("shared", 1))
    one, other = OverlayChat(workspace), OverlayChat(workspace)
    await one.post(GENERAL, "secret")
    assert texts(await one.history(GENERAL, 10)) == ["secret", "shared"]
    assert texts(await other.history(GENERAL, 10)) == ["shared"]


async def test_a_channel_that_the_bot_is_not_in_is_refused_as_slack_does():
    chat = OverlayChat(Workspace())
    with pytest.raises(ToolError, match="not_in_channel"):
        await chat.post(CLOSED, "hello")
    assert await chat.history(CLOSED, 10) == ()
