"""An MCP server whose one tool waits, without processor time, and notes when it was called.

Run it as a script, on the standard streams: waiting_server.py SECONDS FILE. Several of them may share the file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("waiting", log_level="WARNING")
_wait_s = float(sys.argv[1])
_calls = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


# Not said to be read-only: equal calls of such a tool that are in flight at once would share one answer.
@server.tool()
async def wait(number: int) -> str:
    """Wait a little, then give another number."""
    os.write(_calls, f"{time.time():.6f} {number}\n".encode())
    await asyncio.sleep(_wait_s)
    return str(number * 7919 % 100_003)


if __name__ == "__main__":
    server.run("stdio")
