"""A call over HTTP that is given up leaves nothing behind."""

# R15

import asyncio
import os

import pytest
from live_servers import eventually
from mcp import MCPError
from upstream_calls import ERAS, call_echo, client_of, does
from upstream_server import upstream


@pytest.mark.slow
@ERAS
@pytest.mark.parametrize("phase", ["no head", "in events", "in body"])
async def test_a_hundred_cancelled_calls_leave_no_connection_behind(era, phase):
    async def behave(upcall):
        if phase == "in events":
            await upcall.open_events()
            await upcall.event(
                {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
            )
        elif phase == "in body":
            await upcall.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{")
        waiting.append(1)
        await upcall.gone.wait()

    waiting = []
    handler, _ = does(behave)
    async with upstream(era, handler) as served, client_of(served.url) as client:
        mine = len(os.listdir("/proc/self/fd"))
        calls = [asyncio.create_task(client.call_tool("misbehave")) for _ in range(100)]
        await eventually(lambda: len(waiting) == 100)
        assert served.num_open >= 100
        for number, call in enumerate(calls):
            call.cancel("done with it" if number % 2 else None)
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        await eventually(lambda: served.num_open <= 65)
        await call_echo(client)
        # Idle connections, which carried the older protocol's notifications, expire, and go with the next request.
        async with asyncio.timeout(60):
            while served.num_open > 2:
                await asyncio.sleep(0.1)
                await call_echo(client)
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= mine + 4)


async def test_a_call_past_the_sdks_own_time_limit_frees_its_connection():
    async def behave(upcall):
        await upcall.gone.wait()

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        with pytest.raises(MCPError, match=r"[Tt]imed out"):
            await client.call_tool("misbehave", read_timeout_seconds=0.1)
        await eventually(lambda: served.num_open <= 1)
