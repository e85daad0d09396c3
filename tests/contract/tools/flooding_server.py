"""An MCP server that writes what no SDK's would: results without end, bytes that are no text, no JSON, no answer.

It speaks JSON-RPC by hand. Run it as a script: on the standard streams, or with --http PORT.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = b"flood " * 10_000
MEGABYTE = 1_000_000
METHOD_NOT_FOUND = -32601


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": name, "inputSchema": schema, "annotations": {"readOnlyHint": True}}


TOOLS = [
    tool("echo", text="string"),
    tool("huge", megabytes="integer", id_last="boolean"),
    tool("endless", id_last="boolean"),
    tool("bad_utf8"),
    tool("half_surrogate"),
    tool("deep", depth="integer"),
    tool("no_object"),
    tool("hold"),
    tool("chatter"),
    tool("deaf"),
    tool("close_input"),
    tool("close_output"),
]


def answer(request: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of the answer to a request; none where it gets none."""
    request_id = json.dumps(request.get("id")).encode()
    match request:
        case {"method": "tools/call", "id": _, "params": {"name": name, **rest}}:
            yield from WAYS.get(name, plain)(request_id, rest.get("arguments") or {})
        case {"method": "tools/list", "id": _}:
            yield from whole(request_id, {"tools": TOOLS})
        case {"method": "initialize", "id": _, "params": {"protocolVersion": version}}:
            server = {"name": "flooding", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
            yield from whole(request_id, result)
        case {"method": "ping", "id": _}:
            yield from whole(request_id, {})
        case {"method": method, "id": _}:
            error = json.dumps({"code": METHOD_NOT_FOUND, "message": f"no method {method}"}).encode()
            yield b'{"jsonrpc":"2.0","id":' + request_id + b',"error":' + error + b"}"


def whole(request_id: bytes, result: dict[str, Any]) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + json.dumps(result).encode() + b"}"


def text_result(request_id: bytes, texts: Iterator[bytes], *, id_last: bool = False) -> Iterator[bytes]:
    """A result with one text part, its id where the Python SDK writes it or where the TypeScript SDK does."""
    opening = b'"result":{"content":[{"type":"text","text":"'
    yield b"{" + opening if id_last else b'{"jsonrpc":"2.0","id":' + request_id + b"," + opening
    yield from texts
    yield b'"}]}' + (b',"jsonrpc":"2.0","id":' + request_id if id_last else b"") + b"}"


def plain(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    return text_result(request_id, iter([json.dumps(arguments.get("text", ""))[1:-1].encode()]))


def huge(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    chunks = (CHUNK for _ in range(arguments.get("megabytes", 64) * MEGABYTE // len(CHUNK) + 1))
    return text_result(request_id, chunks, id_last=arguments.get("id_last", False))


def endless(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    return text_result(request_id, iter(lambda: CHUNK, None), id_last=arguments.get("id_last", False))


def bad_utf8(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    return text_result(request_id, iter([b"caf\xe9 \xff\xfe \xf0\x9f end"]))


def half_surrogate(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    return text_result(request_id, iter([b"half \\ud83d pair"]))


def deep(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    depth = arguments.get("depth", 100_000)
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    yield b'{"jsonrpc":"2.0","id":' + request_id + b',"result":{"content":[],"structuredContent":' + nested + b"}}"


def no_object(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","id":' + request_id + b',"result":"just text"}'


def hold(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    return iter(())


def chatter(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    yield b"Listening on standard input\n\n[]\n42\n{broken\n"
    yield b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
    yield from whole(request_id, {"content": [{"type": "text", "text": "still here"}]})


def deaf(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    """Answer, and never read again."""
    yield from whole(request_id, {"content": []})
    yield b"\n"
    sys.stdout.buffer.flush()
    time.sleep(600)


def close_input(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    os.close(0)
    time.sleep(600)
    yield b""


def close_output(request_id: bytes, arguments: dict[str, Any]) -> Iterator[bytes]:
    os.close(1)
    time.sleep(600)
    yield b""


Way = Callable[[bytes, dict[str, Any]], Iterator[bytes]]
WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        huge,
        endless,
        bad_utf8,
        half_surrogate,
        deep,
        no_object,
        hold,
        chatter,
        deaf,
        close_input,
        close_output,
    )
}


def serve_stdio() -> None:
    for line in sys.stdin.buffer:
        for chunk in answer(json.loads(line)):
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


class Handler(BaseHTTPRequestHandler):
    """Streamable HTTP in its plainest form: each POST is answered with JSON, chunk by chunk."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for chunk in answer(request):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            self.close_connection = True

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT")
    arguments = parser.parse_args()
    if arguments.http:
        ThreadingHTTPServer(("127.0.0.1", arguments.http), Handler).serve_forever()
    else:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        serve_stdio()


if __name__ == "__main__":
    main()
