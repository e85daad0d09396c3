"""`mcprl serve`: run one of the MCP servers that ship with mcprl."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["command"]


def command(
    name: Annotated[str, typer.Argument(help="Server, such as directory.", show_default=False)],
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP on 127.0.0.1 instead of stdio.")] = False,
    port: Annotated[int, typer.Option(help="Port for --http.")] = 8000,
) -> None:
    """Serve tools over stdio, or over HTTP at /mcp."""
    from mcprl.servers import serve

    serve(name, transport="http" if http else "stdio", port=port)
