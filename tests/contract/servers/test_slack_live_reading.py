"""How a real workspace is read: odd records, the list of channels that all episodes share, and posts laid over it."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_slack import BOT, CHANNELS, HISTORY, TOKEN, list_channels, local_slack, posts
from local_upstream import Trouble
from mcp import Client, MCPError

from mcprl.protocol import EPISODE, EPISODE_SCOPE, SCOPE
from mcprl_market.slack import LiveChat, make_server
from mcprl_market.upstream import Upstream


@pytest.fixture
def upstream(monkeypatch):
    with local_slack() as served:
        monkeypatch.setenv("SLACK_BOT_TOKEN", TOKEN)
        monkeypatch.setenv("SLACK_BASE_URL", served.url)
        monkeypatch.setitem(Upstream.__init__.__kwdefaults__, "deadline_s", 60.0)  # however busy the machine
        yield served


class LiveWorkspace:
    """`async with` of a live chat whose clock the test moves."""

    def __init__(self, upstream):
        self.now = 0.0
        self._upstream = Upstream("slack", upstream.url, deadline_s=60.0)
        self.chat = LiveChat(self._upstream, clock=lambda: self.now)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._upstream.close()


def num_listings(upstream):
    """The local workspace has two pages of channels."""
    return [request.path for request in upstream.requests].count("/conversations.list") / 2


@pytest.mark.parametrize("timestamp", ["", "yesterday", "-1.0", "99999999999999.000000", 1751034600.0, None])
async def test_a_message_without_a_sound_timestamp_is_infrastructure(upstream, timestamp):
    upstream.routes["GET /conversations.history"] = {"ok": True, "messages": [{**HISTORY[0], "ts": timestamp}]}
    async with Client(make_server(world=None)) as client:
        with pytest.raises(MCPError, match=r"conversations\.history\.messages\[0\]\.ts should be a (string|timestamp)"):
            await client.call_tool("get_slack_channel_history", {"channel_id": "general"})


async def test_a_message_says_who_wrote_it_as_well_as_it_can(upstream):
    stamp = {"ts": "1751034600.000100"}
    messages = [
        {**stamp, "user": "U1", "username": "Feed", "bot_id": "B1", "text": "a"},
        {**stamp, "username": "Feed", "bot_id": "B1", "text": "b"},
        {**stamp, "bot_id": "B1", "text": "c"},
        {**stamp, "subtype": "bot_message"},
    ]
    upstream.routes["GET /conversations.history"] = {"ok": True, "messages": messages}
    async with LiveWorkspace(upstream) as workspace:
        channel = (await workspace.chat.channels())[0]
        read = await workspace.chat.history(channel, 10)
    assert [(message.user, message.text) for message in read] == [
        ("U1", "a"), ("Feed", "b"), ("B1", "c"), ("unknown", ""),
    ]  # fmt: skip


async def test_escapes_are_undone_once_and_not_twice(upstream):
    texts = ["&lt;b&gt;", "&amp;lt;", "&quot;", "a & b"]
    messages = [{"user": "U1", "text": text, "ts": "1751034600.000100"} for text in texts]
    upstream.routes["GET /conversations.history"] = {"ok": True, "messages": messages}
    async with LiveWorkspace(upstream) as workspace:
        channel = (await workspace.chat.channels())[0]
        read = await workspace.chat.history(channel, 10)
    assert [message.text for message in read] == ["<b>", "&lt;", "&quot;", "a & b"]


async def test_episodes_that_ask_together_share_one_listing_and_those_after_a_minute_get_a_new_one(upstream):
    async with LiveWorkspace(upstream) as workspace:
        listed = await asyncio.gather(*(workspace.chat.channels() for _ in range(50)))
        assert {len(channels) for channels in listed} == {len(CHANNELS)}
        assert num_listings(upstream) == 1
        workspace.now = 59.9
        await workspace.chat.channels()
        assert num_listings(upstream) == 1
        workspace.now = 60.0
        await workspace.chat.channels()
        assert num_listings(upstream) == 2


async def test_a_listing_that_fails_fails_for_all_who_wait_and_the_next_one_starts_anew(upstream):
    async with LiveWorkspace(upstream) as workspace:
        with upstream.failing(Trouble.BROKEN):
            failures = await asyncio.gather(*(workspace.chat.channels() for _ in range(20)), return_exceptions=True)
        assert {type(failure) for failure in failures} == {MCPError}
        assert len(upstream.requests) == 1
        assert len(await workspace.chat.channels()) == len(CHANNELS)


async def test_a_failed_listing_that_nobody_waits_for_any_more_troubles_nobody(upstream):
    async with LiveWorkspace(upstream) as workspace:
        with upstream.failing(Trouble.SILENT):
            waiting = asyncio.create_task(workspace.chat.channels())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(MCPError, match="did not answer"):
                await upstream.unanswered(workspace.chat.channels(), before=0)  # joins the listing that was left
        assert len(await workspace.chat.channels()) == len(CHANNELS)


async def test_a_caller_who_gives_up_does_not_take_the_listing_from_the_others(upstream):
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_list(request):
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(60)
        return list_channels(request)

    upstream.routes["GET /conversations.list"] = slow_list
    async with LiveWorkspace(upstream) as workspace:
        one, other = (asyncio.create_task(workspace.chat.channels()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        go.set()
        assert len(await other) == len(CHANNELS)
    assert num_listings(upstream) == 1


@pytest.mark.parametrize("for_real", [False, True])
async def test_only_tools_that_keep_a_state_are_marked_as_an_episodes_own(upstream, for_real):
    async with Client(make_server(world=None, post_for_real=for_real)) as client:
        assert client.server_info.version == "1"
        tools = (await client.list_tools()).tools
    episodic = {tool.name for tool in tools if (tool.meta or {}).get(SCOPE) == EPISODE_SCOPE}
    assert episodic == (set() if for_real else {"send_slack_message", "get_slack_channel_history"})
    reading = {tool.name for tool in tools if tool.annotations.read_only_hint}
    assert reading == {"list_slack_channels", "get_slack_channel_history"}
    assert all(tool.annotations.open_world_hint for tool in tools)


EPISODES = st.sampled_from(["a", "b", None])
NAMES = st.sampled_from(["general", "random"])
POSTS = st.tuples(st.just("post"), EPISODES, NAMES, st.text(min_size=1, max_size=20).filter(str.strip))
READS = st.tuples(st.just("read"), EPISODES, NAMES, st.integers(1, 6))


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(POSTS | READS, max_size=12))
def test_any_interleaving_equals_episodes_alone_and_slack_never_hears_of_it(upstream, actions):
    real = {"general": [(m.get("user") or m["bot_id"], m["text"]) for m in HISTORY], "random": []}
    real["general"][0] = ("U0ANA", "P/E < 10 & rising")

    async def compare():
        own = {}
        async with Client(make_server(world=None)) as client:
            for kind, episode, channel, value in actions:
                meta = None if episode is None else {EPISODE: episode}
                posted = own.setdefault((episode, channel), [])
                if kind == "post":
                    arguments = {"channel": channel, "message": value}
                    assert not (await client.call_tool("send_slack_message", arguments, meta=meta)).is_error
                    posted.insert(0, (BOT, value))
                else:
                    arguments = {"channel_id": channel, "limit": value}
                    read = await client.call_tool("get_slack_channel_history", arguments, meta=meta)
                    found = [(m["user"], m["text"]) for m in read.structured_content["messages"]]
                    assert found == [*posted, *real[channel]][:value]

    asyncio.run(compare())
    assert posts(upstream) == []
