"""An MCP server with one tool whose answers come in no fixed order: each takes a time of its own, up to 30 ms."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

_LONGEST_S = 0.03

server = MCPServer("bells", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
async def ring(bell: Literal["low", "high"]) -> str:
    """Ring a bell."""
    await asyncio.sleep(random.uniform(0.0, _LONGEST_S))
    return "dong" if bell == "low" else "ding"


if __name__ == "__main__":
    server.run("stdio")
