"""An MCP server that tells its environment. Run it as a script: on the standard streams, or with --http PORT."""

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("environment", log_level="WARNING")


@server.tool()
def environment() -> str:
    """The variables, one a line."""
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
