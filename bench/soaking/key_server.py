"""An MCP server with one tool that fails when told to. Run it as a script, on the standard streams, with a folder.

A file in the folder is an order for one call, whichever comes next: `hang-…`, it is never answered; `garbage-…`, what
comes in the place of its answer is no message. Whoever removes the file carries it out, so it is carried out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

_LATENCY_S = 0.1
_GARBAGE = b'\xff\xfe{"jsonrpc": "2.0", "id": \x00\x01, "result": [[[[\n' + b"Traceback (most recent call last):\n" * 20

server = MCPServer("keys", log_level="ERROR")
orders = Path(sys.argv[1])


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
async def turn(key: Literal["amber", "bone", "coral", "dusk", "ebony", "flint", "glass", "honey"]) -> str:
    """Turn a key."""
    await asyncio.sleep(_LATENCY_S)
    order = _next_order()
    if order.startswith("garbage"):
        os.write(1, _GARBAGE)
    if order:
        await asyncio.Event().wait()
    return "turned"


def _next_order() -> str:
    for name in sorted(os.listdir(orders)):
        with contextlib.suppress(FileNotFoundError):
            (orders / name).unlink()
            return name
    return ""


if __name__ == "__main__":
    server.run("stdio")
