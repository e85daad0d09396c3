"""The SDK's own server over HTTP, in both protocol eras, through our transport."""

# R15

import asyncio
import os
import sys
from pathlib import Path

import pytest
from live_servers import HERE, eventually
from mcp import MCPError
from upstream_calls import client_of, outcome

from mcprl.processes import ChildProcess, free_port
from mcprl.tools.transports.messages import Trouble, outcome_of

pytestmark = [pytest.mark.process, pytest.mark.parametrize("mode", ["auto", "legacy"])]


class FaultyServer:
    """faulty_server.py as a process that can be killed and started again on its port."""

    def __init__(self, log):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.log = log

    async def start(self):
        argv = [sys.executable, str(HERE / "faulty_server.py"), "--http", str(self.port)]
        self.child = await ChildProcess.start(argv, env=dict(os.environ), log=self.log)
        await eventually(self.accepts)

    def accepts(self):
        assert self.child.exit_code is None
        return self.num_sockets(state="0A") > 0

    def num_sockets(self, state="01"):
        """Connections of the server in a state of TCP; 01 is established, 0A is listening."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] == state for row in rows)


@pytest.fixture
async def server(tmp_path):
    server = FaultyServer(tmp_path / "faulty.log")
    await server.start()
    yield server
    await server.child.stop()


async def test_many_calls_in_flight_each_get_their_own_answer(server, mode):
    async with client_of(server.url, mode=mode) as client:
        calls = [client.call_tool("echo", {"text": f"hé {number}"}) for number in range(64)]
        assert [answer.content[0].text for answer in await asyncio.gather(*calls)] == [f"hé {n}" for n in range(64)]


async def test_errors_of_the_server_are_its_own_and_results_too_large_are_cut(server, mode):
    async with client_of(server.url, mode=mode, limit=200_000) as client:
        with pytest.raises(MCPError, match="on purpose") as caught:
            await client.call_tool("protocol_error", {"code": -32050, "message": "on purpose"})
        assert (caught.value.code, outcome_of(caught.value)) == (-32050, None)
        assert (await client.call_tool("fail")).is_error
        assert len((await client.call_tool("big", {"size": 90_000})).content[0].text) == 90_000
        told = await outcome(client.call_tool("big", {"size": 300_000}))
        assert told.trouble is Trouble.TOO_LARGE
        assert set(told.text) == {"x"}


async def test_cancelled_calls_end_on_the_server_too_and_hold_no_connection(server, mode):
    async with client_of(server.url, mode=mode) as client:
        hanging = [asyncio.create_task(client.call_tool("hang")) for _ in range(100)]
        await client.call_tool("wait_for_hanging", {"count": 100})
        assert server.num_sockets() >= 100
        for call in hanging:
            call.cancel()
        await asyncio.wait(hanging)
        await asyncio.wait_for(client.call_tool("wait_for_hanging", {"count": 0}), 60)
        await eventually(lambda: server.num_sockets() <= 66)  # those kept for reuse, and the older listening stream


async def test_a_killed_server_fails_the_calls_in_flight_and_a_new_one_is_told_from_the_old(server, mode):
    lost = []
    async with client_of(server.url, mode=mode, on_session_lost=lambda: lost.append(1)) as client:
        hanging = [asyncio.create_task(client.call_tool("hang")) for _ in range(8)]
        await client.call_tool("wait_for_hanging", {"count": 8})
        await server.child.stop()
        for call in hanging:
            told = await outcome(call)
            assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)
        told = await outcome(client.call_tool("echo", {"text": "x"}))
        assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, False)
        await server.start()
        if mode == "auto":
            assert (await client.call_tool("echo", {"text": "x"})).content[0].text == "x"
            assert lost == []
        else:
            told = await outcome(client.call_tool("echo", {"text": "x"}))
            assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, False)
            await eventually(lambda: lost == [1])
