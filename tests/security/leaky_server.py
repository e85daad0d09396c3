"""An MCP server that leaks its secrets in every way it can. Run it as a script.

It leaks every variable of its environment that begins with CANARY_, in several encodings, and what LEAK_MORE holds: a
JSON list of texts in base64. With --http PORT it is spoken to over HTTP; with --die it leaks and ends at once.
"""

import argparse
import base64
import html
import json
import os
import sys
from typing import Any
from urllib.parse import quote, quote_plus

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ResourceLink, TextContent

SECRETS = [value for name, value in sorted(os.environ.items()) if name.startswith("CANARY_")]
MORE: list[str] = json.loads(base64.b64decode(os.environ.get("LEAK_MORE", "W10=")))


def encodings(value: str) -> list[str]:
    basic = base64.b64encode(f"user:{value}".encode()).decode()
    return [
        value,
        quote(value, safe=""),
        quote_plus(value),
        json.dumps(value),
        html.escape(value),
        base64.b64encode(value.encode()).decode(),
        f"Basic {basic}",
        f"https://api.test/q?symbol=AAPL&apikey={quote(value)}",
        f"https://user:{quote(value, safe='')}@api.test/",
    ]


LEAK = "\n".join([*(text for value in SECRETS for text in encodings(value)), *MORE])
ONE_LINE = " ".join([*SECRETS, *MORE]).replace("\n", " ")

server = MCPServer("leaky", log_level="INFO")


def to_stderr(text: str) -> None:
    # In pieces, as a buffer that is written when full does.
    for start in range(0, len(text), 7):
        sys.stderr.write(text[start : start + 7])
        sys.stderr.flush()


@server.tool(description=f"Leaks in its description. {ONE_LINE}")
def leak_text(note: str = "") -> str:
    return LEAK


@server.tool()
def leak_structured() -> dict[str, Any]:
    """Leaks in keys and values."""
    return {"secrets": SECRETS, "more": MORE, **dict.fromkeys(SECRETS, 1)}


@server.tool()
def leak_link() -> CallToolResult:
    """Leaks in the address of a resource."""
    links = [
        ResourceLink(type="resource_link", name="x", uri=f"https://h.test/?token={quote(value)}") for value in SECRETS
    ]
    return CallToolResult(content=list(links))


@server.tool()
def leak_at_the_cut(before: int) -> str:
    """Leaks where the result is cut."""
    return "x" * before + LEAK + "y" * 100_000


@server.tool()
def leak_too_much(before: int) -> str:
    """Leaks in a result that nobody reads to its end."""
    return "x" * before + LEAK * (5_000_000 // len(LEAK) + 1)


@server.tool()
def leak_tool_error() -> str:
    """Leaks in an error for the model."""
    raise ToolError(LEAK)


@server.tool()
def leak_exception() -> str:
    """Leaks in an exception that nobody catches."""
    raise ValueError(LEAK)


@server.tool()
def leak_disguised_error() -> str:
    """Leaks in an error that is called a success."""
    return json.dumps({"error": "upstream failed", "detail": ONE_LINE})


@server.tool()
def leak_protocol_error(code: int) -> str:
    """Leaks in an error of the protocol."""
    raise MCPError(code=code, message=ONE_LINE, data={"request": LEAK})


@server.tool()
def leak_malformed() -> CallToolResult:
    """Leaks in a result that is none."""
    result = CallToolResult(content=[TextContent(type="text", text=LEAK)])
    object.__setattr__(result, "content", [{"type": ONE_LINE, "text": 5}])
    return result


@server.tool()
def leak_stderr() -> str:
    """Leaks into the log."""
    to_stderr(LEAK + "\n" + ONE_LINE + "\n" + "z" * 65_530 + ONE_LINE + "\n")
    return "leaked"


@server.tool()
def leak_wrapped() -> str:
    """Leaks into the log, broken to the width of a terminal as handlers for terminals do it, and before a column."""
    for value in SECRETS:
        for shift, text in enumerate(encodings(value)):
            message = f"{'-' * (shift * 5)}HTTP Request: GET {text} 200 OK"
            for number, start in enumerate(range(0, len(message), 37)):
                when, where = ("[12:00:00] INFO     ", "client.py:1025") if number == 0 else (" " * 20, "")
                print(f"{when}{message[start : start + 37]:37} {where:14}", file=sys.stderr, flush=True)
    return "leaked"


@server.tool()
def leak_stdout() -> str:
    """Leaks between the messages."""
    sys.stdout.write(f"{ONE_LINE}\n{{{ONE_LINE}\n")
    sys.stdout.flush()
    return "leaked"


@server.tool()
def leak_and_crash() -> str:
    """Leaks at its end, in a line that has none."""
    to_stderr(LEAK)
    os._exit(3)


@server.tool()
def leak_status(status: int) -> str:
    """Leaks in the body of an HTTP error; see `LeakyBodies`."""
    return str(status)


class LeakyBodies:
    """Answers calls of leak_status over HTTP with that status and a body full of secrets, and logs every request."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        print("request", scope["query_string"], scope["headers"], file=sys.stderr, flush=True)
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        params = json.loads(body).get("params") or {}
        if params.get("name") == "leak_status":
            headers = [(b"content-type", b"text/plain"), (b"x-leak", quote(ONE_LINE).encode())]
            await send({"type": "http.response.start", "status": params["arguments"]["status"], "headers": headers})
            await send({"type": "http.response.body", "body": LEAK.encode()})
            return

        async def replay() -> Any:
            nonlocal body
            if body is None:
                return await receive()
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        await self.app(scope, replay, send)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", type=int)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--api-key")
    arguments = parser.parse_args()
    # LEAK_MORE is the test's own: base64 of secrets that nobody registered cannot be recognised.
    environment = {name: value for name, value in os.environ.items() if name != "LEAK_MORE"}
    to_stderr(f"started with {sys.argv} {environment}\n{LEAK}\n")
    if arguments.die:
        raise SystemExit(f"cannot start: {ONE_LINE}")
    if arguments.http:
        app = LeakyBodies(server.streamable_http_app())
        uvicorn.run(app, host="127.0.0.1", port=arguments.http, log_level="debug")
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
