"""The MCP servers that ship with mcprl, by name. Importing this package is cheap: a server is imported when made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from mcprl.errors import BadValueError
from mcprl.redact import SECRETS
from mcprl.suggestions import did_you_mean

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

__all__ = ["SERVERS", "make_server", "run"]

SERVERS: Mapping[str, str] = {
    "bfcl": "mcprl.servers.bfcl.server",
    "directory": "mcprl.servers.directory",
    "fmp": "mcprl.servers.fmp.server",
    "polygon": "mcprl.servers.polygon.server",
    "python": "mcprl.servers.python.server",
    "slack": "mcprl.servers.slack.server",
    "tavily": "mcprl.servers.tavily.server",
}
"""Name of each server and the module whose `make_server` makes it."""


def make_server(name: str, **options: Any) -> MCPServer:
    """A server, not yet running. Options are those of its own `make_server`: make_server("fmp", world=7)."""
    if name not in SERVERS:
        hint = did_you_mean(name, SERVERS)
        raise BadValueError(f"mcprl ships no server {name!r}{hint}", fix=f"choose one of: {', '.join(sorted(SERVERS))}")
    return import_module(SERVERS[name]).make_server(**options)


def run(
    server: MCPServer, transport: Literal["stdio", "http"] = "stdio", port: int = 8000, host: str = "127.0.0.1"
) -> None:
    """Run a server until it is told to stop: on the standard streams, or over streamable HTTP at /mcp.

    Only this machine can reach it over HTTP unless `host` says otherwise.
    """
    # The libraries below log requests, and some hold a key in their URL.
    SECRETS.install_in_logging()
    if transport == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host=host, port=port, streamable_http_path="/mcp")
