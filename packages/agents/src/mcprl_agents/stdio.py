"""Serves an episode's tools over stdio, for agents whose MCP client supports only stdio.

MCPRL_MCP_URL=http://127.0.0.1:PORT/TOKEN/mcp python -m mcprl_agents.stdio
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mcp import Client
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult


async def serve(url: str) -> None:
    """Forward tool calls to the MCP server at `url` until stdin is closed."""
    async with Client(url) as tools:

        async def listed(context: Any, params: Any) -> ListToolsResult:
            return await tools.list_tools()

        async def called(context: Any, params: CallToolRequestParams) -> CallToolResult:
            return await tools.call_tool(params.name, params.arguments)

        server = Server[Any]("mcprl", on_list_tools=listed, on_call_tool=called)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve(os.environ["MCPRL_MCP_URL"]))
