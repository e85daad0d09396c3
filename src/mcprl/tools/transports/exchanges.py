"""HTTP requests and their responses: parsing, failures, and server-sent events."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp_types import (
    METHOD_NOT_FOUND,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from mcprl.protocol import retry_after_s
from mcprl.secrets import SECRETS
from mcprl.tools.transports.messages import TransportOutcome, Trouble, beginning_of, error_for, lenient_json

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event: its fields and its raw bytes.

    ServerEvent(name="message", data=b'{"jsonrpc":"2.0"}', id="7", raw=b'id: 7\\ndata: {"jsonrpc":"2.0"}\\n\\n')
    """

    name: str
    data: bytes
    id: str
    raw: bytes


class EventSplitter:
    """Splits a stream of bytes into events, in linear time.

    Lines end with a line feed, a carriage return or both. Comments are dropped. An event ends with an empty line.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._unfinished = bytearray()
        self._ended_with_return = False
        self._is_first_line = True

    @property
    def is_too_large(self) -> bool:
        """Whether the unfinished event exceeds the limit. If it does, stop calling `feed`."""
        return self._num_bytes + len(self._unfinished) > self._max_bytes

    @property
    def beginning(self) -> bytes:
        """The data of the unfinished event received so far."""
        return _data([*self._lines, bytes(self._unfinished)])

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Return the events that this piece completes. If an event becomes too large, the rest is ignored."""
        if self._ended_with_return and piece.startswith(b"\n"):
            piece = piece[1:]
            self._ended_with_return = False
        events: list[ServerEvent] = []
        for line in piece.splitlines(keepends=True):
            self._ended_with_return = line.endswith(b"\r")
            if not line.endswith((b"\n", b"\r")):
                self._unfinished += line
            elif (event := self._end_line(line.rstrip(b"\r\n"))) is not None:
                events.append(event)
            if self.is_too_large:
                break
        return events

    def _end_line(self, last: bytes) -> ServerEvent | None:
        line = bytes(self._unfinished) + last if self._unfinished else last
        self._unfinished.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b":"):
            return None
        if line:
            self._lines.append(line)
            self._num_bytes += len(line)
            return None
        lines, self._lines, self._num_bytes = self._lines, [], 0
        return _event(lines) if lines else None


def _event(lines: list[bytes]) -> ServerEvent:
    name = identity = ""
    for line in lines:
        field, value = _field(line)
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            identity = value.decode(errors="replace")
    return ServerEvent(name or "message", _data(lines), identity, b"\n".join(lines) + b"\n\n")


def _data(lines: Iterable[bytes]) -> bytes:
    return b"\n".join(value for field, value in map(_field, lines) if field == b"data")


def _field(line: bytes) -> tuple[bytes, bytes]:
    field, _, value = line.partition(b":")
    return field, value.removeprefix(b" ")


_EXCERPT_CHARACTERS = 300
# Redact before cutting to the excerpt, because half a secret is not recognized.
_REDACTED_BYTES = 8192

# A request as the SDK writes it. Messages that do not match are parsed as JSON.
_REQUEST_HEAD = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),"method":')

# These errors mean that nothing was sent. After any other error, the server may have received the request.
_NOTHING_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """How many bytes of an answer are read, and how many characters are kept of an answer that is too large.

    AnswerLimits(max_bytes=16_777_216, text_characters=69_632)
    """

    max_bytes: int
    text_characters: int


def request_id_of(content: bytes) -> str | int | None:
    """Return the id of the JSON-RPC request in a body, or None for a notification or a response."""
    head = _REQUEST_HEAD.match(content)
    if head is not None:
        return int(head[1])
    message: dict[str, Any] = from_json(content)
    return message.get("id") if "method" in message else None


def cancelled_id_of(content: bytes) -> str | int | None:
    """Return the id of the request that this body cancels, or None if the body is not a cancellation."""
    message: dict[str, Any] = from_json(content)
    return message["params"]["requestId"] if message.get("method") == "notifications/cancelled" else None


def read_message(
    body: bytes, limits: AnswerLimits
) -> JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError | TransportOutcome:
    """Parse the bytes as the SDK will. Return the JSON-RPC message, or a TransportOutcome if they are not one."""
    try:
        return jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
    if "recursion limit" in why:
        text = beginning_of(body, limits.text_characters)
        return TransportOutcome(trouble=Trouble.TOO_LARGE, detail="the answer is nested too deeply", text=text)
    return broken("the answer is not a JSON-RPC message", body)


def read_repaired(
    body: bytes, limits: AnswerLimits
) -> tuple[bytes, JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError | TransportOutcome]:
    """Return the message, and the bytes for the SDK: invalid UTF-8 and unpaired surrogates are replaced by U+FFFD."""
    message = read_message(body, limits)
    if not isinstance(message, TransportOutcome) or message.trouble is not Trouble.BROKEN:
        return body, message
    try:
        repaired = to_json(lenient_json(body))
    except ValueError:
        return body, message
    return repaired, read_message(repaired, limits)


def answers(message: object, request_id: str | int) -> bool:
    """Return True if a message answers this request. An error may lack the id if the server could not parse it."""
    match message:
        case JSONRPCResponse(id=answered) | JSONRPCError(id=answered):
            # Some servers answer the request 7 with the id "7"; the SDK accepts that.
            return answered is None or str(answered) == str(request_id)
        case _:
            return False


def connection_outcome(error: httpx2.RequestError) -> TransportOutcome:
    """Convert a failed connection to an outcome. `delivered` is False only if certainly nothing was sent."""
    text = _one_line(str(error))
    return TransportOutcome(
        trouble=Trouble.BROKEN if isinstance(error, httpx2.DecodingError) else Trouble.UNREACHABLE,
        detail=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        delivered=not isinstance(error, _NOTHING_SENT),
    )


def too_large(beginning: bytes, limits: AnswerLimits) -> TransportOutcome:
    """Return the outcome for an answer above the size limit."""
    return TransportOutcome(
        trouble=Trouble.TOO_LARGE,
        detail=f"the answer is larger than {limits.max_bytes} bytes",
        text=beginning_of(beginning, limits.text_characters),
    )


def broken(what: str, body: bytes) -> TransportOutcome:
    """Return the outcome for bytes that are not an answer."""
    excerpt = _one_line(body[:_REDACTED_BYTES].decode(errors="replace"))
    return TransportOutcome(trouble=Trouble.BROKEN, detail=f"{what}: {excerpt}" if excerpt else what)


def status_outcome(status: int, headers: Mapping[str, str], body: bytes) -> TransportOutcome:
    """Return the outcome for an HTTP response whose body is not a JSON-RPC message."""
    wait_s = retry_after_s(headers)
    if status == 413:
        return TransportOutcome(trouble=Trouble.REFUSED_FOR_SIZE, detail="HTTP 413", delivered=False)
    if status == 429:
        # Status 429 means that the request was rejected before it was processed.
        return TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 429", delivered=False, retry_after_s=wait_s)
    if status == 503 and wait_s is not None:
        return TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 503", retry_after_s=wait_s)
    if status in {401, 403}:
        return broken(f"HTTP {status}: the server needs a key in the headers, or rejected the key", b"")
    if status < 300 and headers.get("content-type"):
        return broken(f"HTTP {status} with a {_one_line(headers['content-type'])} body instead of an answer", body)
    outcome = broken(f"HTTP {status} without an answer" if status < 300 else f"HTTP {status}", body)
    return replace(outcome, retry_after_s=wait_s)


def refuses_session(status: int, message: object) -> bool:
    """Return True if the answer to a request with a session id means that the server no longer knows the session.

    In the protocol, status 404 means this, unless the error in the body is "method not found". Servers based on a
    common example send 400 instead, and an error that has no id and mentions the session.
    """
    if not isinstance(message, JSONRPCError):
        return status == 404
    if status == 404:
        return message.error.code != METHOD_NOT_FOUND
    return status == 400 and message.id is None and "session" in message.error.message.lower()


def _one_line(text: str) -> str:
    """Format a server's text for an error message: one short line without secrets and control characters."""
    words = SECRETS.redact(text).split()
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(words))
    return line if len(line) <= _EXCERPT_CHARACTERS else line[:_EXCERPT_CHARACTERS] + "…"


ABANDONED = TransportOutcome(trouble=Trouble.UNREACHABLE, detail="the call was cancelled")
_ENDED = TransportOutcome(trouble=Trouble.UNREACHABLE, detail="the stream of events ended without an answer")

_DRAIN_S = 1.0
_DRAIN_BYTES = 65536


class Exchange:
    """One request until it is answered: its POST, and the GETs that resume a broken stream."""

    def __init__(self, request_id: str | int) -> None:
        self.request_id = request_id
        self.last_event_id = ""
        """The event id to resume a broken stream from. Empty if the stream cannot be resumed."""
        self.failed_resumptions = 0
        self.is_abandoned = False
        self._scope: anyio.CancelScope | None = None

    def abandon(self) -> None:
        """Stop waiting for the answer, because the caller no longer needs it."""
        self.is_abandoned = True
        if self._scope is not None:
            self._scope.cancel()

    @contextmanager
    def until_abandoned(self) -> Generator[None]:
        """End the block early, without an exception, when the exchange is abandoned."""
        with anyio.CancelScope() as scope:
            if self.is_abandoned:
                scope.cancel()
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None


def error_event(error: JSONRPCError) -> ServerEvent:
    """Wrap an error as an event that replaces the answer."""
    data = error.model_dump_json().encode()
    return ServerEvent("message", data, "", b"data: " + data + b"\n\n")


class EventStream(httpx2.AsyncByteStream):
    """The events of a response, for the SDK to read.

    The stream of a request ends after its answer, after an error that replaces the answer, or at a point from which the
    SDK can resume it. A stream without a request just ends, and the SDK opens it again.
    """

    def __init__(
        self,
        response: httpx2.Response,
        exchange: Exchange | None,
        limits: AnswerLimits,
        *,
        background: TaskGroup,
        finish: Callable[[Exchange], None],
    ) -> None:
        self.answer: JSONRPCResponse | JSONRPCError | None = None
        """The answer to the request, once it has arrived."""
        self._exchange = exchange
        self._limits = limits
        self._background = background
        self._finish = finish
        self._response = response
        self._chunks = response.aiter_bytes()
        self._splitter = EventSplitter(limits.max_bytes)
        self._arrived: deque[ServerEvent] = deque()
        self._held: ServerEvent | None = None
        self._is_over = False

    async def first_event(self) -> ServerEvent | None:
        """Return the first event without consuming it, or None if there is none."""
        self._held = await self._next_event()
        return self._held

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        event, self._held = self._held, None
        if event is None:
            event = await self._next_event()
        if event is None:
            raise StopAsyncIteration
        return event.raw

    async def aclose(self) -> None:
        """Free the connection. The exchange continues only if the stream broke and can be resumed."""
        exchange = self._exchange
        if exchange is not None and (self.answer is not None or not self._is_over):
            self._finish(exchange)
        if self.answer is not None and not self._is_over:
            # The connection can be reused after the body is read to its end, which happens in the background.
            self._is_over = True
            self._background.start_soon(self._drain)
        else:
            await self._close()

    async def _next_event(self) -> ServerEvent | None:
        if self._is_over or self.answer is not None:
            return None
        if self._exchange is None:
            return await self._arrival()
        event: ServerEvent | None = None
        with self._exchange.until_abandoned():
            event = await self._arrival()
        if self._exchange.is_abandoned:
            return self._answer(ABANDONED)
        if event is None or event.name != "message" or not event.data or self.answer is not None:
            return event
        data, message = read_repaired(event.data, self._limits)
        if data is not event.data:
            event = ServerEvent(event.name, data, event.id, b"data: " + data + b"\n\n")
        if isinstance(message, TransportOutcome):
            return self._answer(message)
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self.answer = message
        return event

    async def _arrival(self) -> ServerEvent | None:
        """Return the next event, an error that replaces it, or None at the end of the stream."""
        while not self._arrived:
            if self._splitter.is_too_large:
                return self._answer(too_large(self._splitter.beginning, self._limits))
            try:
                chunk = await anext(self._chunks, None)
            except httpx2.RequestError as error:
                # The server received the request; otherwise there would be no stream.
                return self._break_off(replace(connection_outcome(error), delivered=True))
            if chunk is None:
                return self._break_off(_ENDED)
            self._arrived += self._splitter.feed(chunk)
        event = self._arrived.popleft()
        if event.id and self._exchange is not None:
            self._exchange.last_event_id = event.id
        return event

    def _break_off(self, outcome: TransportOutcome) -> ServerEvent | None:
        if self._exchange is not None and not self._exchange.last_event_id:
            return self._answer(outcome)
        self._is_over = True
        return None

    def _answer(self, outcome: TransportOutcome) -> ServerEvent | None:
        self._is_over = True
        if self._exchange is None:
            return None
        self.answer = error_for(self._exchange.request_id, outcome)
        return error_event(self.answer)

    async def _drain(self) -> None:
        num_bytes = 0
        try:
            with anyio.move_on_after(_DRAIN_S):
                async for chunk in self._chunks:
                    num_bytes += len(chunk)
                    if num_bytes > _DRAIN_BYTES:
                        break
        except httpx2.RequestError:
            pass  # the answer has arrived, so losing the connection does not matter
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._chunks.aclose()
        await self._response.aclose()
