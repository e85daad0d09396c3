"""An MCP server whose tools never answer when asked not to. A script: on the standard streams, or with --http PORT."""

from __future__ import annotations

import argparse
import asyncio

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("hanging", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(number: int, work_ms: int, hang: bool) -> str:
    """Say the number back, or never answer. A client may repeat this call."""
    return await _answer(number, work_ms, hang)


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
async def act(number: int, work_ms: int, hang: bool) -> str:
    """Say the number back, or never answer. A client must not repeat this call."""
    return await _answer(number, work_ms, hang)


async def _answer(number: int, work_ms: int, hang: bool) -> str:
    if hang:
        await asyncio.Event().wait()
    await asyncio.sleep(work_ms / 1000)
    return str(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT")
    arguments = parser.parse_args()
    if arguments.http:
        server.run("streamable-http", port=arguments.http)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
