"""`mcprl serve`: run an MCP server of mcprl or of an installed package."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mcprl.cli.commands import Commands

app = Commands("Serve tools over stdio, or over HTTP at /mcp. `pip install 'mcprl[market]'` adds more servers.")

Http = Annotated[bool, typer.Option("--http", help="Use streamable HTTP on 127.0.0.1 instead of stdio.")]
Port = Annotated[int, typer.Option(help="Port for --http.")]


@app.command()
def directory(http: Http = False, port: Port = 8000) -> None:
    """A small office directory, to try things out."""
    serve_by_name("directory", http, port)


def serve_by_name(name: str, http: bool, port: int, **options: Any) -> None:
    from mcprl.servers import make_server, run

    run(make_server(name, **options), transport="http" if http else "stdio", port=port)
