"""The MCP servers that ship with mcprl, by name. Importing this package is cheap: a server is imported when served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from mcprl.errors import BadValueError
from mcprl.suggestions import did_you_mean

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["SERVERS", "serve"]


def _make_directory() -> MCPServer:
    from mcprl.servers.directory import make_server

    return make_server()


SERVERS: Mapping[str, Callable[[], MCPServer]] = {"directory": _make_directory}
"""Name of each server and the function that makes it."""


def serve(
    name: str, *, transport: Literal["stdio", "http"] = "stdio", port: int = 8000, host: str = "127.0.0.1"
) -> None:
    """Run one server until it is told to stop: on the standard streams, or over streamable HTTP at /mcp.

    Only this machine can reach it over HTTP unless `host` says otherwise.
    """
    if name not in SERVERS:
        hint = did_you_mean(name, SERVERS)
        raise BadValueError(f"mcprl ships no server {name!r}{hint}", fix=f"choose one of: {', '.join(sorted(SERVERS))}")
    server = SERVERS[name]()
    if transport == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host=host, port=port, streamable_http_path="/mcp")
