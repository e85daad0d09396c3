"""An MCP server that keeps notes for each episode in one process, and asks to be called later on request."""

import os
from typing import Any

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

from mcprl.protocol import RETRY_AFTER_S
from mcprl.servers.episode_state import EPISODIC, EpisodeStates

server = MCPServer("remembering", log_level="WARNING")
notes: EpisodeStates[list[str]] = EpisodeStates(list)
refusals: list[float] = []


def write(text: str, ctx: Context[Any, Any]) -> str:
    """Note something down."""
    notes.of(ctx).append(text)
    return "noted"


async def read(ctx: Context[Any, Any]) -> str:
    """All notes of this episode, and the process that keeps them."""
    return f"{os.getpid()}: {','.join(notes.of(ctx))}"


def refuse(seconds: list[float]) -> str:
    """Ask the callers of `look` to come back later, once for each number."""
    refusals.extend(seconds)
    return "as you wish"


def look() -> str:
    """Say something, or ask for patience."""
    if refusals:
        raise MCPError(code=-32050, message="upstream is busy", data={RETRY_AFTER_S: refusals.pop(0)})
    return "seen"


server.add_tool(write, meta=EPISODIC)
server.add_tool(read, meta=EPISODIC, annotations=ToolAnnotations(read_only_hint=True))
server.add_tool(refuse)
server.add_tool(look)

if __name__ == "__main__":
    server.run("stdio")
