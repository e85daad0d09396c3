"""Code that the market's servers share: creating a live or offline server, adding tools, and formatting results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic_core import to_jsonable_python

from mcprl_market.upstream import Upstream
from mcprl_market.world import Market, open_market

S = TypeVar("S")
T = TypeVar("T")

_SYMBOL = re.compile(r"[A-Z0-9^][A-Z0-9.:=^-]{0,19}")
_MAX_DESCRIPTION_CHARS = 300


def checked_symbol(text: str) -> str:
    """Return one ticker symbol in capitals. The result is safe in the path of a URL."""
    symbol = text.strip().upper()
    if not _SYMBOL.fullmatch(symbol):
        raise ToolError(f"{text!r} is not a ticker symbol. Give exactly one, without spaces or commas.")
    return symbol


def known(symbol: str, found: T | None) -> T:
    """Return what was found for a symbol. Raises ToolError if it is None."""
    if found is None:
        raise ToolError(f"There is no stock with the symbol {symbol!r}. Search for the company to find its symbol.")
    return found


def labelled(title: str, fields: Mapping[str, str]) -> str:
    """Format a title, and a line for each field that is not empty."""
    lines = [f"{label}: {value}" for label, value in fields.items() if value]
    return "\n".join([f"**{title}**", *lines])


def money(amount: float) -> str:
    """Format dollars with two to four decimals, as many as needed: $213.88, $0.0685, $-0.24."""
    return f"${_decimals(amount)}"


def percent(share: float) -> str:
    """Format a change in percent: 1.50%, -0.1381%."""
    return f"{_decimals(share)}%"


def whole(number: int) -> str:
    return f"{number:,}"


def shortened(text: str) -> str:
    """Return the beginning of a long description, because descriptions use up the policy's context."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_DESCRIPTION_CHARS else f"{text[:_MAX_DESCRIPTION_CHARS].rstrip()}..."


def _decimals(number: float) -> str:
    text = f"{number:.4f}"
    while text.endswith("0") and text[-3] != ".":
        text = text[:-1]
    return "0.00" if text == "-0.00" else text


def answer(structured: Any, text: str) -> CallToolResult:
    """Make a tool's result: the text for the policy, and the underlying records as JSON for programs."""
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=to_jsonable_python(structured)
    )


def read_only(*, is_live: bool) -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=is_live)


def add_tools(server: MCPServer, tools: object, annotations: ToolAnnotations) -> None:
    """Add every public method of an object as a tool with the same name."""
    for name in vars(type(tools)):
        if not name.startswith("_"):
            server.add_tool(getattr(tools, name), annotations=annotations)


def live_server(name: str, upstream: Upstream) -> MCPServer:
    # At WARNING, because a log line per request would hide what matters in the logs of a run.
    return MCPServer(name, version="1", log_level="WARNING", lifespan=upstream.lifespan)


def offline_server(name: str, world: str) -> MCPServer:
    """Create a server. Its version contains the name of its world, as in 1+market-7."""
    return MCPServer(name, version=f"1+{world}", log_level="WARNING")


def live_or_offline(
    name: str,
    world: int | None,
    *,
    upstream: Callable[[], Upstream],
    live: Callable[[Upstream], S],
    offline: Callable[[Market], S],
) -> tuple[MCPServer, S]:
    """Create a server without tools, and its data source: the offline world of seed `world`, or live data (None)."""
    if world is None:
        reached = upstream()
        return live_server(name, reached), live(reached)
    market = open_market(world)
    return offline_server(name, market.name), offline(market)
