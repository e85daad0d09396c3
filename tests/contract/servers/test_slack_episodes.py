"""One offline chat server that episodes share: no lease and no client sees another's messages, on either transport."""

import asyncio
import sys

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from served_specs import served_spec

from mcprl.protocol import EPISODE, EPISODE_LIVES_S
from mcprl.records import ToolCall
from mcprl.tools import Toolbox
from mcprl_market.world import open_workspace

pytestmark = pytest.mark.process

SEED = 7
CHANNEL = open_workspace(SEED).channels()[0]
ORIGINAL = [message.text for message in open_workspace(SEED).history(CHANNEL.id, 999)]
TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http"])


def offline_slack(tmp_path, transport):
    spec = served_spec("slack", transport, "--world", str(SEED), env={})
    return Toolbox([spec], log_dir=tmp_path)


async def send(lease, message):
    return await lease.call(
        ToolCall(name="send_slack_message", arguments={"channel": CHANNEL.name, "message": message})
    )


async def newest(lease, limit=1):
    arguments = {"channel_id": CHANNEL.id, "limit": limit}
    observation = await lease.call(ToolCall(name="get_slack_channel_history", arguments=arguments))
    return [line.split(": ", 1)[1] for line in observation.text.splitlines()[2:]]


@TRANSPORTS
async def test_two_leases_on_one_process_never_see_each_others_messages(tmp_path, transport):
    async with offline_slack(tmp_path, transport) as toolbox:
        assert toolbox.definitions["slack"][0] == f"1+market-{SEED}"
        async with toolbox.lease(None) as one, toolbox.lease(None) as other:
            for number in range(5):
                await send(one, f"one {number}")
                await send(other, f"other {number}")
            assert await newest(one, 6) == [*(f"one {n}" for n in (4, 3, 2, 1, 0)), ORIGINAL[0]]
            assert await newest(other, 6) == [*(f"other {n}" for n in (4, 3, 2, 1, 0)), ORIGINAL[0]]
        async with toolbox.lease(None) as fresh:
            assert await newest(fresh) == [ORIGINAL[0]]
        assert len(toolbox.pids("slack")) == 1
        assert toolbox.restarts == 0


@TRANSPORTS
async def test_many_episodes_at_once_keep_apart(tmp_path, transport):
    async def episode(toolbox, name):
        async with toolbox.lease(["send_slack_message", "get_slack_channel_history"]) as lease:
            for number in range(3):
                await send(lease, f"{name}-{number}")
            return await newest(lease, 4)

    async with offline_slack(tmp_path, transport) as toolbox:
        read = await asyncio.gather(*(episode(toolbox, f"episode{n}") for n in range(32)))
    assert read == [[*(f"episode{n}-{m}" for m in (2, 1, 0)), ORIGINAL[0]] for n in range(32)]


async def test_any_client_keeps_episodes_apart_by_the_id_in_a_calls_metadata():
    """The contract with a server, without mcprl's own tool runtime."""
    arguments = ["-m", "mcprl", "serve", "slack", "--world", str(SEED)]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:

        async def call(tool, arguments, episode):
            meta = {} if episode is None else {EPISODE: episode, EPISODE_LIVES_S: 60}
            return (await client.call_tool(tool, arguments, meta=meta)).structured_content

        for episode in ("a", "b", None):
            await call("send_slack_message", {"channel": CHANNEL.id, "message": f"from {episode}"}, episode)
        for episode in ("a", "b", None):
            read = await call("get_slack_channel_history", {"channel_id": CHANNEL.id, "limit": 999}, episode)
            assert [message["text"] for message in read["messages"]] == [f"from {episode}", *ORIGINAL]
