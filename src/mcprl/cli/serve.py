"""`mcprl serve`: run one of the MCP servers that ship with mcprl."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

__all__ = ["app"]

app = typer.Typer(
    help="Serve tools over stdio, or over HTTP at /mcp.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Http = Annotated[bool, typer.Option("--http", help="Streamable HTTP on 127.0.0.1 instead of stdio.")]
_Port = Annotated[int, typer.Option(help="Port for --http.")]
_World = Annotated[
    int | None, typer.Option("--world", metavar="SEED", help="Serve the offline world of this seed: no key needed.")
]


@app.callback()
def serve() -> None:
    """Serve tools over stdio, or over HTTP at /mcp."""


@app.command()
def directory(http: _Http = False, port: _Port = 8000) -> None:
    """A small office directory, to try things out."""
    _run("directory", http, port)


@app.command()
def fmp(world: _World = None, http: _Http = False, port: _Port = 8000) -> None:
    """Stocks from Financial Modeling Prep (FMP_API_KEY), or offline."""
    _run("fmp", http, port, world=world)


@app.command()
def polygon(world: _World = None, http: _Http = False, port: _Port = 8000) -> None:
    """Stocks from Polygon (POLYGON_API_KEY), or offline."""
    _run("polygon", http, port, world=world)


@app.command()
def tavily(world: _World = None, http: _Http = False, port: _Port = 8000) -> None:
    """Web search by Tavily (TAVILY_API_KEY), or offline."""
    _run("tavily", http, port, world=world)


@app.command()
def slack(
    world: _World = None,
    post_for_real: Annotated[
        bool, typer.Option("--post-for-real", help="Post messages to Slack; otherwise they stay in their episode.")
    ] = False,
    http: _Http = False,
    port: _Port = 8000,
) -> None:
    """Channels and messages of Slack (SLACK_BOT_TOKEN), or offline."""
    _run("slack", http, port, world=world, post_for_real=post_for_real)


@app.command()
def bfcl(http: _Http = False, port: _Port = 8000) -> None:
    """The simulators of one task of BFCL multi-turn, told which by its first call."""
    _run("bfcl", http, port)


@app.command()
def python(
    world: Annotated[
        int | None, typer.Option("--world", metavar="SEED", help="World that the version names; code runs the same.")
    ] = None,
    engine: Annotated[
        Literal["auto", "sandbox", "monty"],
        typer.Option(help="What runs the code: a sandboxed Python, or monty, a small interpreter of a subset."),
    ] = "sandbox",
    allow_unsafe: Annotated[
        bool, typer.Option("--allow-unsafe", help="Run code even where the sandbox cannot protect this machine.")
    ] = False,
    http: _Http = False,
    port: _Port = 8000,
) -> None:
    """Execution of Python code."""
    _run("python", http, port, world=world, engine=engine, allow_unsafe=allow_unsafe)


def _run(name: str, http: bool, port: int, **options: Any) -> None:
    from mcprl.servers import make_server, run

    run(make_server(name, **options), transport="http" if http else "stdio", port=port)
