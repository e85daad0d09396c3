"""An MCP server whose tools change: a file decides what it lists, and a tool makes it announce a change."""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer

wording = Path(sys.argv[1])
server = MCPServer("changing", log_level="WARNING")


def who() -> str:
    return str(os.getpid())


server.add_tool(who, description=wording.read_text())


@server.tool()
async def change(description: str, ctx: Context) -> str:
    """Describe a tool differently from now on, and say so."""
    server.remove_tool("who")
    server.add_tool(who, description=description)
    await ctx.notify_tools_changed()
    return "changed"


if __name__ == "__main__":
    server.run("stdio")
