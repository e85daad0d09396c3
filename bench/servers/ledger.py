"""An MCP server that writes down every delivery. Run it as a script on the standard streams.

`write_NAME` appends its id to the ledger in the middle of its work and before its answer, so that a kill can come
before the delivery, between delivery and answer, or after both. The ledger outlives the process.
"""

from __future__ import annotations

import argparse
import asyncio
import os

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations


def make_server(name: str, ledger: int) -> MCPServer:
    server = MCPServer(name, log_level="WARNING")

    async def look(item: int, work_ms: int) -> str:
        """Look something up, which changes nothing. The answer names the process."""
        await asyncio.sleep(work_ms / 1000)
        return str(os.getpid())

    async def write(id: str, work_ms: int) -> str:
        """Do something that must not be done twice."""
        await asyncio.sleep(work_ms / 2000)
        os.write(ledger, f"{id}\n".encode())
        await asyncio.sleep(work_ms / 2000)
        return id

    server.add_tool(look, name=f"look_{name}", annotations=ToolAnnotations(read_only_hint=True))
    server.add_tool(write, name=f"write_{name}", annotations=ToolAnnotations(read_only_hint=False))
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--ledger", required=True)
    arguments = parser.parse_args()
    ledger = os.open(arguments.ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    make_server(arguments.name, ledger).run("stdio")


if __name__ == "__main__":
    main()
