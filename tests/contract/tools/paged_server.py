"""An MCP server on stdio that lists one tool a page: two pages, or with --endless always one more."""

import asyncio
import sys

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool


async def list_tools(context, params):
    page = int(params.cursor) if params is not None and params.cursor else 0
    more = "--endless" in sys.argv or page == 0
    tool = Tool(name=f"tool_{page}", input_schema={"type": "object"})
    return ListToolsResult(tools=[tool], next_cursor=str(page + 1) if more else None)


async def call_tool(context, params):
    return CallToolResult(content=[TextContent(type="text", text=params.name)])


async def main():
    server = Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


asyncio.run(main())
