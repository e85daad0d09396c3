"""An MCP server with one small read-only tool. Run it as a script: on the standard streams, or with --http PORT."""

from __future__ import annotations

import argparse
from typing import Annotated, Literal

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

_KEEP_ALIVE_S = 300

server = MCPServer("echo", log_level="WARNING")


class Quote(BaseModel):
    """What the tool answers; its schema is the tool's output schema."""

    symbol: str
    number: int
    prices: list[float]
    interval: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
def quote(
    symbol: Annotated[str, Field(min_length=1, max_length=12)],
    number: Annotated[int, Field(ge=0)],
    interval: Literal["day", "week", "month"] = "day",
    fields: list[str] | None = None,
) -> Quote:
    """Prices of a symbol, made up."""
    prices = [float(number % 97 + place) for place in range(len(fields or ()))]
    return Quote(symbol=symbol, number=number, prices=prices, interval=interval)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT")
    arguments = parser.parse_args()
    if arguments.http:
        # Idle connections are kept: a bare session ends with the first that is closed under it, and it has to wait here
        # while the other side is measured.
        uvicorn.run(
            server.streamable_http_app(), port=arguments.http, log_level="warning", timeout_keep_alive=_KEEP_ALIVE_S
        )
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
