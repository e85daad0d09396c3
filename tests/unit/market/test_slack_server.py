"""The chat server of an offline world: its tools, texts and refusals, and that no episode sees another's messages."""
# R14

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from mcprl.errors import BadValueError, MissingKeyError
from mcprl.protocol import EPISODE, EPISODE_SCOPE, SCOPE
from mcprl_market.slack import MAX_MESSAGE_CHARS, make_server
from mcprl_market.world import open_workspace

SEED = 7
CHANNELS = open_workspace(SEED).channels()
FIRST = CHANNELS[0]


def slack():
    # In memory, and entered inside each test: the SDK wants a client left by the task that entered it.
    return Client(make_server(world=SEED))


async def send(client, channel, message, episode=None):
    meta = None if episode is None else {EPISODE: episode}
    return await client.call_tool("send_slack_message", {"channel": channel, "message": message}, meta=meta)


async def history(client, channel, limit=10, episode=None):
    meta = None if episode is None else {EPISODE: episode}
    arguments = {"channel_id": channel, "limit": limit}
    return await client.call_tool("get_slack_channel_history", arguments, meta=meta)


def texts_of(result):
    return [message["text"] for message in result.structured_content["messages"]]


def original_texts(channel):
    return [message.text for message in open_workspace(SEED).history(channel.id, 999)]


def in_new_york(message):
    # In June New York is four hours behind UTC.
    moment = datetime.fromtimestamp(int(message["timestamp"].split(".")[0]), UTC) - timedelta(hours=4)
    assert moment.month == 6
    return f"{moment:%Y-%m-%d %H:%M:%S}"


async def test_tools_have_the_contracts_names_and_arguments_and_say_what_they_do():
    async with slack() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {name: list(tool.input_schema["properties"]) for name, tool in tools.items()} == {
        "list_slack_channels": [],
        "send_slack_message": ["channel", "message"],
        "get_slack_channel_history": ["channel_id", "limit"],
    }
    assert tools["send_slack_message"].input_schema["required"] == ["channel", "message"]
    assert tools["get_slack_channel_history"].input_schema["required"] == ["channel_id"]
    assert tools["get_slack_channel_history"].input_schema["properties"]["limit"]["default"] == 10
    assert all(len(tool.description) < 70 for tool in tools.values())


async def test_all_tools_use_the_state_of_an_episode_and_all_but_posting_are_read_only():
    async with slack() as client:
        for tool in (await client.list_tools()).tools:
            assert tool.meta[SCOPE] == EPISODE_SCOPE
            reads = tool.name != "send_slack_message"
            assert tool.annotations.read_only_hint is reads
            assert tool.annotations.idempotent_hint is reads
        assert client.server_info.version == f"1+market-{SEED}"


async def test_posting_destroys_nothing():
    async with slack() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["send_slack_message"].annotations.destructive_hint is False


async def test_channels_are_listed_with_id_and_purpose():
    async with slack() as client:
        result = await client.call_tool("list_slack_channels", {})
    lines = result.content[0].text.splitlines()
    assert lines[0] == f"**Public Channels ({len(CHANNELS)}):**"
    assert [line.split(" - ")[0] for line in lines[2:]] == [f"#{c.name} (ID: {c.id})" for c in CHANNELS]
    assert result.structured_content["channels"][0] == {"id": FIRST.id, "name": FIRST.name, "purpose": FIRST.purpose}


@pytest.mark.parametrize("wanted", [FIRST.id, FIRST.name, f"#{FIRST.name}", f" #{FIRST.name.upper()} "])
async def test_a_channel_may_be_named_in_any_way_for_posting_and_for_reading(wanted):
    async with slack() as client:
        sent = await send(client, wanted, "VLKN is at 213.88 🚀")
        assert sent.content[0].text == f"✅ Message sent to #{FIRST.name}"
        assert sent.structured_content["channel_id"] == FIRST.id
        read = await history(client, wanted, 1)
        assert texts_of(read) == ["VLKN is at 213.88 🚀"]
        assert read.structured_content["messages"][0]["timestamp"] == sent.structured_content["timestamp"]


async def test_a_history_shows_time_author_and_text_newest_first():
    async with slack() as client:
        await send(client, FIRST.name, "one")
        await send(client, FIRST.name, "two")
        read = await history(client, FIRST.id, 2)
    newest, older = read.structured_content["messages"]
    assert (newest["text"], older["text"]) == ("two", "one")
    # The clock of the world stands at a Friday afternoon in New York, and ticks a second a post.
    assert read.content[0].text.splitlines() == [
        f"**History of #{FIRST.name} (newest first):**",
        "",
        f"[{in_new_york(newest)}] @{newest['user']}: two",
        f"[{in_new_york(older)}] @{older['user']}: one",
    ]


async def test_without_a_limit_ten_messages_are_shown():
    async with slack() as client:
        for number in range(12):
            await send(client, FIRST.id, str(number))
        read = await client.call_tool("get_slack_channel_history", {"channel_id": FIRST.id})
    assert texts_of(read) == [str(number) for number in range(11, 1, -1)]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("send_slack_message", {"channel": "#daily-gainers", "message": "hello"}),
        ("get_slack_channel_history", {"channel_id": "#daily-gainers"}),
    ],
)
async def test_an_unknown_channel_is_refused_by_naming_those_there_are(tool, arguments):
    async with slack() as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert "There is no channel '#daily-gainers'. The channels are: " in result.content[0].text
    assert all(f"#{channel.name} ({channel.id})" in result.content[0].text for channel in CHANNELS)


@pytest.mark.parametrize(
    ("message", "why"),
    [("", "is empty"), (" \n\t", "is empty"), ("x" * (MAX_MESSAGE_CHARS + 1), "at most 40000 are allowed")],
)
async def test_a_message_that_slack_would_not_take_is_refused_and_not_posted(message, why):
    async with slack() as client:
        result = await send(client, FIRST.id, message)
        assert result.is_error
        assert why in result.content[0].text
        assert texts_of(await history(client, FIRST.id, 999)) == original_texts(FIRST)


@pytest.mark.parametrize("limit", [0, -1, 1000, "many"])
async def test_a_limit_out_of_bounds_is_the_callers_mistake(limit):
    async with slack() as client:
        assert (await history(client, FIRST.id, limit)).is_error


async def test_a_message_comes_back_as_it_was_written():
    text = 'Line one\nline two: P/E < 10 & rising > "x" \\ 日本 🚀 <tool_response>'
    async with slack() as client:
        await send(client, FIRST.id, text)
        assert texts_of(await history(client, FIRST.id, 1)) == [text]


async def test_two_episodes_and_a_caller_without_one_do_not_see_each_other():
    async with slack() as client:
        for episode in ("a", "b", None):
            await send(client, FIRST.id, f"from {episode}", episode)
        for episode in ("a", "b", None):
            read = texts_of(await history(client, FIRST.id, 999, episode))
            assert read == [f"from {episode}", *original_texts(FIRST)]
        assert texts_of(await history(client, FIRST.id, 999, "c")) == original_texts(FIRST)


async def test_the_same_episode_gives_the_same_answers_whenever_it_is_run():
    async def run_once(episode):
        async with slack() as client:
            await send(client, FIRST.id, "noise", "another")
            await send(client, FIRST.id, "hello", episode)
            return (await history(client, FIRST.id, 999, episode)).content[0].text

    assert await run_once("a") == await run_once("b")


EPISODES = st.sampled_from(["a", "b", "c", None])
POSTS = st.tuples(st.just("post"), EPISODES, st.sampled_from(CHANNELS), st.text(min_size=1).filter(str.strip))
READS = st.tuples(st.just("read"), EPISODES, st.sampled_from(CHANNELS), st.integers(1, 12))


@given(st.lists(POSTS | READS, max_size=15))
def test_any_interleaving_of_episodes_equals_episodes_alone(actions):
    async def compare():
        own = {}
        async with slack() as client:
            for kind, episode, channel, value in actions:
                posted = own.setdefault((episode, channel.id), [])
                if kind == "post":
                    assert not (await send(client, channel.name, value, episode)).is_error
                    posted.insert(0, value)
                else:
                    read = await history(client, channel.id, value, episode)
                    assert texts_of(read) == [*posted, *original_texts(channel)][:value]

    asyncio.run(compare())


def test_an_offline_world_cannot_be_posted_to_for_real():
    with pytest.raises(BadValueError, match="omit --post-for-real"):
        make_server(world=SEED, post_for_real=True)


@pytest.mark.parametrize("token", [None, "", "  "])
def test_a_live_server_without_its_token_does_not_start(token, monkeypatch):
    if token is None:
        monkeypatch.delenv("SLACK_BOT_TOKEN", raising=False)
    else:
        monkeypatch.setenv("SLACK_BOT_TOKEN", token)
    with pytest.raises(MissingKeyError, match="SLACK_BOT_TOKEN"):
        make_server(world=None)


async def test_structured_answers_are_json_that_fits_their_schema():
    async with slack() as client:  # the client checks each against the tool's output schema
        await send(client, FIRST.id, "x")
        for result in (await client.call_tool("list_slack_channels", {}), await history(client, FIRST.id)):
            assert json.loads(json.dumps(result.structured_content)) == result.structured_content
