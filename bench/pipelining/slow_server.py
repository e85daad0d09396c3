"""An MCP server whose one tool takes a second and no processor time. Run it as a script, on the standard streams."""

from __future__ import annotations

import asyncio
from typing import Literal

from mcp.server.mcpserver import MCPServer

_LATENCY_S = 1.0

server = MCPServer("vaults", log_level="WARNING")


# Not said to be read-only: equal calls of such a tool that are in flight at once would share one answer.
@server.tool()
async def turn(key: Literal["amber", "bone", "coral", "dusk", "ebony", "flint", "glass", "honey"]) -> str:
    """Turn a key."""
    await asyncio.sleep(_LATENCY_S)
    return "turned"


if __name__ == "__main__":
    server.run("stdio")
