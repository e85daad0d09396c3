"""Loads MCP servers of mcprl and of installed packages by name. A server is imported only when it is used."""

from __future__ import annotations

import os
import secrets
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from mcprl.errors import BadValueError, MissingExtraError, did_you_mean
from mcprl.protocol import TOKEN_HEADER, TOKEN_VARIABLE
from mcprl.secrets import SECRETS

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["make_server", "run"]

# Servers of packages that may be missing, each with the extra that installs it.
_EXTRAS = {**dict.fromkeys(("fmp", "polygon", "python", "slack", "tavily"), "market"), "bfcl": "suites"}


def make_server(name: str, **options: Any) -> MCPServer:
    """Create a server without starting it. `options` are passed to its own `make_server`: make_server("fmp", world=7).

    Packages add servers through the entry point group `mcprl.servers`.
    """
    servers = {entry.name: entry for entry in entry_points(group="mcprl.servers")}
    if name in servers:
        return servers[name].load()(**options)
    if name in _EXTRAS:
        raise MissingExtraError(f"the server {name!r} is not installed", fix=f"pip install 'mcprl[{_EXTRAS[name]}]'")
    raise BadValueError(
        f"unknown server {name!r}{did_you_mean(name, servers)}", fix=f"choose one of: {', '.join(sorted(servers))}"
    )


def run(
    server: MCPServer, transport: Literal["stdio", "http"] = "stdio", port: int = 8000, host: str = "127.0.0.1"
) -> None:
    """Run a server until it is stopped, over stdio or over streamable HTTP at /mcp.

    Over HTTP, it accepts connections only from this machine unless `host` is changed. If MCPRL_SERVER_TOKEN is set
    (mcprl sets it for the servers of a run), requests need that token in the header x-mcprl-token, because every user
    of a machine can connect to its loopback ports.
    """
    # The libraries below log requests, and some URLs contain a key.
    SECRETS.install_in_logging()
    if transport == "stdio":
        server.run("stdio")
    else:
        import uvicorn

        app: ASGIApp = server.streamable_http_app(streamable_http_path="/mcp", host=host)
        if token := os.environ.get(TOKEN_VARIABLE):
            app = _with_token(app, token)
        uvicorn.run(app, host=host, port=port, log_level=server.settings.log_level.lower())


def _with_token(app: ASGIApp, token: str) -> ASGIApp:
    """Wrap an application: requests without the token get 401."""
    from starlette.datastructures import Headers
    from starlette.responses import PlainTextResponse

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get(TOKEN_HEADER, "")
            if not secrets.compare_digest(given.encode(), token.encode()):
                await PlainTextResponse(f"the header {TOKEN_HEADER} is missing or wrong", 401)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded
