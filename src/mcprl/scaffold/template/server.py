#!/usr/bin/env python3
"""The stock room of a small shop, as an MCP server: count an item, take some out, put some in."""

from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from mcprl.servers.episode_state import EPISODIC, EpisodeStates

STOCK = {"mugs": 24, "pens": 60, "bowls": 35, "cards": 90}

# Each episode starts with this stock, and no episode sees changes of another one.
rooms = EpisodeStates(lambda: dict(STOCK))
# WARNING: one line per call would hide the important lines in the logs of a run.
server = MCPServer("stock", version="1", log_level="WARNING")


@server.tool(meta=EPISODIC, annotations=ToolAnnotations(read_only_hint=True))
def count_stock(item: str, context: Context[Any, Any]) -> str:
    """How many of an item are in stock."""
    return f"{_room_with(item, context)[item]} {item} are in stock."


@server.tool(meta=EPISODIC)
def take_out(item: str, count: int, context: Context[Any, Any]) -> str:
    """Remove the given quantity of an item from the stock."""
    room = _room_with(item, context)
    if not 1 <= count <= room[item]:
        raise ToolError(f"{count} {item} cannot be taken out: {room[item]} are in stock.")
    room[item] -= count
    return f"{count} {item} are taken out, {room[item]} are left."


@server.tool(meta=EPISODIC)
def put_in(item: str, count: int, context: Context[Any, Any]) -> str:
    """Add the given quantity of an item to the stock."""
    room = _room_with(item, context)
    if count < 1:
        raise ToolError(f"{count} {item} cannot be put in: put in at least 1.")
    room[item] += count
    return f"{count} {item} are put in, {room[item]} are in stock now."


def _room_with(item: str, context: Context[Any, Any]) -> dict[str, int]:
    """Return the stock room of the calling episode. The model reads the ToolError's text, so make it helpful."""
    if item not in STOCK:
        raise ToolError(f"We do not sell {item!r}, only {', '.join(STOCK)}.")
    return rooms.of(context)


if __name__ == "__main__":
    server.run("stdio")
