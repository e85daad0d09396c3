"""An upstream on this machine for the live sources: JSON by path, and faults of every kind on demand.

It has a thread and an event loop of its own, so tests of any loop, and servers in other processes, can use it:

    with LocalUpstream({"GET /quote/VLKN": [{"symbol": "VLKN"}]}) as upstream:
        ...                                        # a server with FMP_BASE_URL=upstream.url
        with upstream.failing(Trouble.BUSY):       # every request in the block
            ...
        upstream.requests[-1].params["apikey"]     # what came in

The bodies of its errors quote the whole request, key included, as some real upstreams do.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum, auto
from time import time
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from mcprl_market.upstream import UNSAID_WAIT_S

T = TypeVar("T")


class Trouble(Enum):
    """What can go wrong with a request."""

    KEY_REFUSED = auto()  # 401
    FORBIDDEN = auto()  # 403
    BUSY = auto()  # 429, Retry-After in seconds
    BUSY_UNTIL = auto()  # 429, Retry-After as a date
    BUSY_UNSAID = auto()  # 429 without Retry-After
    BROKEN = auto()  # 500
    DOWN = auto()  # 503 with a page of HTML
    MOVED = auto()  # 302 to another path, which counts what follows
    SILENT = auto()  # never answers
    DRIPPING = auto()  # a byte now and then, for ever
    RESET = auto()  # the connection is reset instead of an answer
    TRUNCATED = auto()  # the connection ends within the body
    MALFORMED = auto()  # 200, and half a JSON text
    NOT_A_NUMBER = auto()  # 200, and NaN, which JSON does not know
    WRONG_TYPE = auto()  # 200, and a JSON text instead of objects
    HOLLOW = auto()  # 200, and the usual answer without its fields
    DISGUISED = auto()  # 200, and the error that the test named
    HUGE = auto()  # 200, and more than anybody wants to read
    RAW = auto()  # 200, and the bytes in `raw_body`


BUSY_S = 60
"""What Retry-After says, as seconds and as a date."""
BUSY = {
    Trouble.BUSY: BUSY_S,
    Trouble.BUSY_UNTIL: pytest.approx(BUSY_S, abs=BUSY_S / 2),  # the date is nearer when it is read
    Trouble.BUSY_UNSAID: UNSAID_WAIT_S,
}
"""How long each trouble asks one to wait."""
HUGE_BYTES = 9 * 1024 * 1024
MOVED_TO = "/moved/elsewhere"


@dataclass(frozen=True)
class SeenRequest:
    """One request that came in. `body` is decoded JSON, or None."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any
    target: str


Route = Any | Callable[[SeenRequest], Any]
"""The JSON to answer with, or a function that makes it; a `Status` for another status than 200."""


@dataclass(frozen=True)
class Status:
    """A JSON answer with a status and optional headers."""

    status: int
    value: Any
    headers: Mapping[str, str] = field(default_factory=dict)


class LocalUpstream:
    """The upstream, running from `with` to its end. `disguise` is the body of Trouble.DISGUISED.

    `missing` is the answer for paths without a route, after the 404 that it would be by default.
    """

    def __init__(self, routes: Mapping[str, Route], *, disguise: Any = None, missing: Route = None) -> None:
        self.routes = dict(routes)
        self.disguise = disguise
        self.missing = Status(404, {"status": "NOT_FOUND", "message": "not found"}) if missing is None else missing
        self.raw_body = b""
        self.requests: list[SeenRequest] = []
        self.url = ""
        self._trouble: Trouble | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="local-upstream")
        self._ready = threading.Event()
        self._connections: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "LocalUpstream":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    @contextmanager
    def failing(self, trouble: Trouble) -> Iterator[None]:
        """Every request that comes in meanwhile ends in this trouble."""
        self._trouble = trouble
        try:
            yield
        finally:
            self._trouble = None

    async def unanswered(self, call: Coroutine[Any, Any, T], *, before: int | None = None) -> T:
        """What becomes of a call whose request is not answered before its deadline, which is 60 s.

        As soon as the request is here, the clock of the caller's event loop is moved on: nobody waits so long. `before`
        is how many requests came before this one, where that is not known now.
        """
        loop, before = asyncio.get_running_loop(), len(self.requests) if before is None else before
        calling = asyncio.create_task(call)
        async with asyncio.timeout(60):
            while len(self.requests) <= before:  # noqa: ASYNC110 - the upstream has a loop of its own
                await asyncio.sleep(0.005)
        usual = loop.time
        loop.time = lambda: usual() + 60.0
        return await calling

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while not writer.transport.is_closing():
                request = await _read_request(reader)
                self.requests.append(request)
                await self._answer(request, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the streams of asyncio would report a cancelled task as a defect
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, request: SeenRequest, writer: asyncio.StreamWriter) -> None:
        trouble = None if request.path == MOVED_TO else self._trouble
        if trouble in _WHOLE:
            status, headers, body = _WHOLE[trouble](request)
            writer.write(_response(status, body, **headers))
        elif trouble in _CONNECTION:
            await _CONNECTION[trouble](writer)
        elif trouble is Trouble.DISGUISED:
            writer.write(_response(200, _json(self.disguise)))
        elif trouble is Trouble.RAW:
            writer.write(_response(200, self.raw_body))
        else:
            found = self._routed(request)
            body = _json(_hollow(found.value) if trouble is Trouble.HOLLOW else found.value)
            writer.write(_response(found.status, body, **found.headers))
        if not writer.transport.is_closing():
            await writer.drain()

    def _routed(self, request: SeenRequest) -> Status:
        route = self.routes.get(f"{request.method} {request.path}", self.missing)
        value = route(request) if callable(route) else route
        return value if isinstance(value, Status) else Status(200, value)


async def _read_request(reader: asyncio.StreamReader) -> SeenRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    method, target, _ = head[0].split()
    parts = urlsplit(target)
    body = json.loads(raw) if raw and "json" in headers.get("content-type", "") else None
    return SeenRequest(method, unquote(parts.path), dict(parse_qsl(parts.query)), headers, body, target)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _response(status: int, body: bytes, **headers: str) -> bytes:
    lines = {"content-type": "application/json", "content-length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Status\r\n{head}\r\n".encode("latin-1") + body


def _told(status: int, what: str, **headers: str) -> Callable[[SeenRequest], tuple[int, dict[str, str], bytes]]:
    """An error that quotes the request, and the header with the key if there is one."""

    def answer(request: SeenRequest) -> tuple[int, dict[str, str], bytes]:
        quoted = f"{what} (request was {request.target}, {request.headers.get('authorization', '')})"
        return status, headers, _json({"error": quoted})

    return answer


def _raw(body: bytes, status: int = 200, **headers: str) -> Callable[[SeenRequest], tuple[int, dict[str, str], bytes]]:
    return lambda _: (status, headers, body)


def _busy_until(request: SeenRequest) -> tuple[int, dict[str, str], bytes]:
    return _told(429, "Too many requests", retry_after=formatdate(time() + BUSY_S, usegmt=True))(request)


_WHOLE = {
    Trouble.KEY_REFUSED: _told(401, "Invalid key"),
    Trouble.FORBIDDEN: _told(403, "Not in your plan"),
    Trouble.BUSY: _told(429, "Too many requests", retry_after=str(BUSY_S)),
    Trouble.BUSY_UNTIL: _busy_until,
    Trouble.BUSY_UNSAID: _told(429, "Too many requests"),
    Trouble.BROKEN: _told(500, "Internal error"),
    Trouble.DOWN: _raw(b"<html><body>503 Service Unavailable</body></html>", 503, content_type="text/html"),
    Trouble.MOVED: _told(302, "Moved", location=MOVED_TO),
    Trouble.MALFORMED: _raw(b'[{"symbol": "VLKN", "pri'),
    Trouble.NOT_A_NUMBER: _raw(b'[{"symbol": "VLKN", "price": NaN}]'),
    Trouble.WRONG_TYPE: _raw(b'"all is well"'),
    Trouble.HUGE: _raw(b'"' + b"x" * HUGE_BYTES + b'"'),
}


async def _silent(writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _truncate(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n[{"symbol": "VL')
    await writer.drain()
    writer.close()


_CONNECTION = {
    Trouble.SILENT: _silent,
    Trouble.DRIPPING: _drip,
    Trouble.RESET: _reset,
    Trouble.TRUNCATED: _truncate,
}

_FLAGS = frozenset({"status", "ok"})


def _hollow(value: Any) -> Any:
    """A JSON value with empty objects and lists, except for flags of success."""
    if isinstance(value, dict):
        return {name: _hollow(item) for name, item in value.items() if isinstance(item, dict | list) or name in _FLAGS}
    if isinstance(value, list):
        return [_hollow(item) for item in value if isinstance(item, dict | list)]
    return value
