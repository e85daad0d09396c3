"""An MCP server that misbehaves on request. Run it as a script: on the standard streams, or with --http PORT."""

import argparse
import asyncio
import os
from typing import Annotated, Literal

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ImageContent, TextContent
from pydantic import Field

server = MCPServer("faulty", log_level="WARNING")
hanging = 0
changed = asyncio.Condition()


@server.tool()
def echo(text: str) -> str:
    """Say it back."""
    return text


@server.tool()
def who() -> str:
    """The process id."""
    return str(os.getpid())


@server.tool()
def variable(name: str) -> str:
    """A variable of the environment."""
    return os.environ.get(name, "")


@server.tool()
async def hang() -> str:
    """Never answer."""
    global hanging
    async with changed:
        hanging += 1
        changed.notify_all()
    try:
        await asyncio.Event().wait()
    finally:
        async with changed:
            hanging -= 1
            changed.notify_all()
    return "never"


@server.tool()
async def wait_for_hanging(count: int) -> str:
    """Answer once exactly that many calls hang."""
    async with changed:
        await changed.wait_for(lambda: hanging == count)
    return "so many hang"


@server.tool()
def crash() -> str:
    """End the process at once."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fail as tools do."""
    raise ToolError("the disk is full")


@server.tool()
def protocol_error(code: int, message: str) -> str:
    """Answer with a protocol error."""
    raise MCPError(code=code, message=message)


@server.tool()
def picture() -> CallToolResult:
    """An image and no text."""
    return CallToolResult(content=[ImageContent(type="image", data="aGk=", mime_type="image/png")])


@server.tool()
def structured() -> CallToolResult:
    """Structured content and no text."""
    return CallToolResult(content=[], structured_content={"city": "Bogotá", "rank": [1, 2]})


@server.tool()
def two_texts() -> CallToolResult:
    """Two text parts around an image."""
    image = ImageContent(type="image", data="aGk=", mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="one"), image, TextContent(type="text", text="two")])


@server.tool()
def big(size: int) -> str:
    """A long text."""
    return "x" * size


@server.tool()
def book(
    city: str,
    nights: Annotated[int, Field(ge=1, le=30)],
    room: Literal["single", "double"] = "single",
    guests: list[str] | None = None,
) -> str:
    """Book a room."""
    return f"{city} {nights} {room} {guests}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    arguments = parser.parse_args()
    if arguments.http:
        # As the SDK does, but for idle connections: after a stall it would close those on which a call is on its way.
        app = server.streamable_http_app()
        uvicorn.run(app, port=arguments.http, log_level="warning", timeout_keep_alive=600)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
