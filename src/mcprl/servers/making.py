"""How the servers are made: live or offline, with which version, which annotations, and what a tool's answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic_core import to_jsonable_python

from mcprl.servers.upstream import Upstream
from mcprl.world import Market, open_market

__all__ = ["answer", "live_or_offline", "live_server", "offline_server", "read_only"]

S = TypeVar("S")


def answer(structured: Any, text: str) -> CallToolResult:
    """A tool's answer: for the policy its text; for programs the records that the text is made from, as JSON."""
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=to_jsonable_python(structured)
    )


def read_only(*, is_live: bool) -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=is_live)


def live_server(name: str, upstream: Upstream) -> MCPServer:
    # Logged at WARNING: a line for each request would bury what matters in a training run's logs.
    return MCPServer(name, version="1", log_level="WARNING", lifespan=upstream.lifespan)


def offline_server(name: str, world: str) -> MCPServer:
    """A server that tells by its version which world it serves, as in 1+market-7."""
    return MCPServer(name, version=f"1+{world}", log_level="WARNING")


def live_or_offline(
    name: str,
    world: int | None,
    *,
    upstream: Callable[[], Upstream],
    live: Callable[[Upstream], S],
    offline: Callable[[Market], S],
) -> tuple[MCPServer, S]:
    """A server without tools yet, and the source of its facts: the offline world with that seed, or live for None."""
    if world is None:
        reached = upstream()
        return live_server(name, reached), live(reached)
    market = open_market(world)
    return offline_server(name, market.name), offline(market)
