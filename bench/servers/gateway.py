"""A paid vendor's gateway that misbehaves: a real MCP server over HTTP, and before it a script of bad answers.

It runs on the event loop of the bench, on a real port, and notes when each tool call arrives. Only tool calls are
tampered with; the handshake and the list of tools pass.

    gateway = Gateway()
    async with gateway.serve() as url:
        gateway.replies = [Reply(status=429, headers={"Retry-After": "2"})]     # for the next call; then all is well
        ...
        gateway.arrivals                                                        # seconds on the monotonic clock
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from mcprl.processes import free_port

__all__ = ["Gateway", "Reply", "make_vendor"]

Scope = MutableMapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the gateway answers in the vendor's place. With `delay_s` alone, the vendor's answer comes late."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    delay_s: float = 0.0


def make_vendor() -> MCPServer:
    """The server behind the gateway: a read-only tool and one that places an order."""
    server = MCPServer("vendor", log_level="ERROR")

    def look(number: int) -> str:
        """Look something up."""
        return str(number)

    def order(number: int) -> str:
        """Order something: not to be repeated."""
        return str(number)

    server.add_tool(look, annotations=ToolAnnotations(read_only_hint=True))
    server.add_tool(order, annotations=ToolAnnotations(read_only_hint=False))
    return server


class Gateway:
    """An ASGI application around the vendor's."""

    def __init__(self) -> None:
        self._vendor = make_vendor().streamable_http_app()
        self.replies: list[Reply] = []
        """Answers for the next tool calls, in their order of arrival."""
        self.always: Reply | None = None
        """The answer to every tool call for which `replies` has none."""
        self.arrivals: list[float] = []
        self.hung_up = 0
        """Tool calls whose connection the client closed while it waited for a late answer."""

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        port = free_port()
        config = uvicorn.Config(self, port=port, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        try:
            async with asyncio.timeout(10):
                while not server.started:  # noqa: ASYNC110 - uvicorn announces it by this flag only
                    await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            server.should_exit = True
            await serving

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._vendor(scope, receive, send)
            return
        arrived = time.monotonic()
        body = await _read(receive)
        if not _is_tool_call(body):
            await self._vendor(scope, _replay(body, receive), send)
            return
        self.arrivals.append(arrived)
        reply = self.replies.pop(0) if self.replies else self.always
        if reply is not None and reply.delay_s and await _disconnects(receive, within_s=reply.delay_s):
            self.hung_up += 1
            return
        if reply is None or reply.status is None:
            await self._vendor(scope, _replay(body, receive), send)
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


async def _read(receive: Any) -> bytes:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _disconnects(receive: Any, within_s: float) -> bool:
    """Whether the client closes the connection in that time. The request must have been read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return (await receive())["type"] == "http.disconnect"
    return False


def _replay(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body once more, then what the client does next."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return pending.pop() if pending else await receive()

    return again


def _is_tool_call(body: bytes) -> bool:
    message = json.loads(body)
    return isinstance(message, dict) and message.get("method") == "tools/call"
