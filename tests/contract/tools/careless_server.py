"""An MCP server on stdio whose structured results do not keep the promise of their output schema."""

import asyncio

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

PRICE = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
ANSWERS = {"right": {"price": 1.5}, "wrong_type": {"price": "much"}, "missing": None}


async def list_tools(context, params):
    return ListToolsResult(
        tools=[Tool(name=name, input_schema={"type": "object"}, output_schema=PRICE) for name in ANSWERS]
    )


async def call_tool(context, params):
    structured = ANSWERS[params.name]
    extra = {} if structured is None else {"structured_content": structured}
    return CallToolResult(content=[TextContent(type="text", text="here it is")], **extra)


async def main():
    server = Server("careless", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


asyncio.run(main())
