"""Calls of the raw server of upstream_server.py, and what each is told when it fails."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from live_servers import eventually
from mcp import Client, MCPError
from upstream_server import upstream

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec
from mcprl.tools.transports.http import http_transport
from mcprl.tools.transports.messages import TransportOutcome, outcome_of

LIMIT = 100_000
ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


@asynccontextmanager
async def client_of(url, *, limit=LIMIT, on_session_lost=None, headers=None, mode="auto", settings=None):
    spec = ServerSpec(name="upstream", url=url, headers=headers or {}, settings=settings or ServerSettings())
    transport = http_transport(url, spec, max_message_bytes=limit, on_session_lost=on_session_lost)
    async with Client(transport, cache=None, mode=mode) as client:
        yield client


def does(tool_behaviour, *, tool="misbehave"):
    """A handler that does this to calls of one tool, and holds calls of `wait` until the client goes or `go` is set."""
    go = asyncio.Event()

    async def handler(upcall):
        if upcall.rpc_method != "tools/call" or upcall.tool not in {tool, "wait"}:
            return False
        if upcall.tool == "wait":
            await _first_of(go.wait(), upcall.gone.wait())
            if go.is_set():
                await upcall.respond_json(upcall.result("waited"))
        else:
            await tool_behaviour(upcall)
        return True

    return handler, go


async def call_echo(client):
    """A call that must succeed."""
    async with asyncio.timeout(60):
        assert (await client.call_tool("echo", {"text": "hé"})).content[0].text == "hé"


async def _first_of(*waits):
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def outcome(call) -> TransportOutcome:
    with pytest.raises(MCPError) as caught:
        await asyncio.wait_for(call, 60)
    found = outcome_of(caught.value)
    assert found is not None, caught.value
    return found


async def outcome_of_misbehaviour(behaviour, era="modern", **options) -> TransportOutcome:
    """What a call is told, after checking that a call before, one during and one after it were answered."""
    handler, go = does(behaviour)
    async with upstream(era, handler) as served, client_of(served.url, **options) as client:
        waiting = asyncio.create_task(client.call_tool("wait"))
        await eventually(lambda: any(call.rpc_method == "tools/call" for call in served.seen))
        told = await outcome(client.call_tool("misbehave"))
        await call_echo(client)
        assert not waiting.done()
        go.set()
        assert (await waiting).content[0].text == "waited"
        return told
