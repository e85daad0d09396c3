"""An MCP server made of raw HTTP, which does to a call whatever a test wants done to it.

It speaks both protocol eras well enough to shake hands, answers the tool `echo`, and hands every other call, and what
else a test asks for, to the test's own function. Run as a script with a port and a size in bytes, its tool `big`
answers with a text of that size, as JSON and as an event.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Era = Literal["modern", "legacy"]
SESSION = "mcp-session-id"
EVENTS = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}


@dataclass
class Upcall:
    """One HTTP request, and the ways to answer it."""

    method: str
    headers: dict[str, str]
    message: dict[str, Any]
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has closed its end."""

    @property
    def id(self) -> Any:
        return self.message["id"]

    @property
    def rpc_method(self) -> str:
        return self.message.get("method", "")

    @property
    def tool(self) -> str:
        return self.message["params"]["name"]

    @property
    def arguments(self) -> dict[str, Any]:
        return self.message["params"].get("arguments") or {}

    def result(self, text: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        return {
            "jsonrpc": "2.0",
            "id": self.id,
            "result": {"resultType": "complete", "content": content, "isError": False},
        }

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def respond(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A whole response. Underscores in the names of headers stand for hyphens."""
        await self.send(_head(status, {**_named(headers), "content-length": str(len(body))}) + body)

    async def respond_json(self, message: Any, status: int = 200, **headers: str) -> None:
        await self.respond(status, json.dumps(message).encode(), content_type="application/json", **headers)

    async def open_events(self, **headers: str) -> None:
        """The head of a stream of events. Pieces follow."""
        await self.send(_head(200, {**EVENTS, **_named(headers), "transfer-encoding": "chunked"}))

    async def piece(self, raw: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(raw), raw))

    async def event(self, message: Any, event_id: str | None = None) -> None:
        head = "" if event_id is None else f"id: {event_id}\n"
        data = message if isinstance(message, str) else json.dumps(message)
        await self.piece(f"{head}data: {data}\n\n".encode())

    async def end_events(self) -> None:
        await self.send(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Reset the connection in the middle of whatever was going on."""
        self.writer.transport.abort()


Handler = Callable[[Upcall], Awaitable[bool]]
"""Answers a request and returns True, or returns False to have it answered as usual."""


class Upstream:
    """The server. `handler` sees each request first."""

    def __init__(self, era: Era, handler: Handler) -> None:
        self.era = era
        self.handler = handler
        self.url = ""
        self.port = 0
        self.num_accepted = 0
        self.seen: list[Upcall] = []
        self.sessions: set[str] = set()
        self._server: asyncio.Server
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)

    async def serve_forever(self) -> None:
        await self._server.serve_forever()

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.num_accepted += 1
        try:
            while await self._serve_request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the streams of asyncio would report a cancelled task as a defect
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        upcall = Upcall(head[0].split()[0], headers, json.loads(body) if body else {}, writer)
        self.seen.append(upcall)
        # Requests of one connection follow each other, so what comes before the answer can only be its end.
        watch = asyncio.ensure_future(reader.read(1))
        watch.add_done_callback(lambda _: upcall.gone.set())
        try:
            if not await self.handler(upcall):
                await self._serve_as_usual(upcall)
        finally:
            is_gone = upcall.gone.is_set()
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                is_gone = await watch == b"" or is_gone
        return not is_gone and not writer.transport.is_closing()

    async def _serve_as_usual(self, upcall: Upcall) -> None:
        if upcall.method == "DELETE":
            return await upcall.respond(200)
        if upcall.method == "GET":
            return await upcall.respond(405)
        if "id" not in upcall.message or "method" not in upcall.message:
            return await upcall.respond(202)
        match upcall.rpc_method:
            case "server/discover" if self.era == "modern":
                answer: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            case "initialize" if self.era == "legacy":
                return await self._open_session(upcall)
            case "tools/list":
                answer = {"tools": []}
            case "tools/call" if upcall.tool == "echo":
                return await upcall.respond_json(upcall.result(upcall.arguments["text"]))
            case _:
                error = {"code": -32601, "message": "Method not found"}
                return await upcall.respond_json({"jsonrpc": "2.0", "id": upcall.id, "error": error}, status=404)
        full = {"resultType": "complete", "cacheScope": "private", "ttlMs": 0, **answer}
        return await upcall.respond_json({"jsonrpc": "2.0", "id": upcall.id, "result": full})

    async def _open_session(self, upcall: Upcall) -> None:
        session = f"session-{len(self.sessions)}"
        self.sessions.add(session)
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "upstream", "version": "1"},
        }
        await upcall.respond_json({"jsonrpc": "2.0", "id": upcall.id, "result": result}, mcp_session_id=session)


@asynccontextmanager
async def upstream(era: Era, handler: Handler) -> AsyncGenerator[Upstream]:
    """The server, running in this process until the block ends."""
    served = Upstream(era, handler)
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Status\r\n{lines}\r\n".encode("latin-1")


async def _send_big(upcall: Upcall, size: int) -> bool:
    if upcall.rpc_method != "tools/call" or upcall.tool not in {"big_json", "big_event"}:
        return False
    before, after = (part.encode() for part in json.dumps(upcall.result("TEXT")).split("TEXT"))
    is_event = upcall.tool == "big_event"
    with contextlib.suppress(OSError):
        await upcall.send(_head(200, {**(EVENTS if is_event else JSON), "connection": "close"}))
        await upcall.send((b"data: " if is_event else b"") + before + b"the beginning ")
        for _ in range(size // 65536):
            await upcall.send(b"x" * 65536)
        await upcall.send(after + (b"\n\n" if is_event else b""))
    upcall.writer.close()
    return True


async def main(port: int, size: int) -> None:
    served = Upstream("modern", lambda upcall: _send_big(upcall, size))
    await served.start(port)
    await served.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
