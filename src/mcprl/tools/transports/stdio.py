"""The stdio transport of mcprl. Its time is linear in the size of messages, and its memory is bounded.

It replaces the SDK's transport, which takes quadratic time for large results, keeps results of any size in memory, and
lets a call wait forever if its answer cannot be parsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import IO, Any, Self, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId
from pydantic import ValidationError

from mcprl.processes import ChildProcess
from mcprl.secrets import SECRETS
from mcprl.tools.transports.messages import (
    CutLine,
    LineSplitter,
    TransportOutcome,
    Trouble,
    beginning_of,
    error_for,
    id_at_end,
    leading_members,
    lenient_json,
)

_logger = logging.getLogger(__name__)

_MAX_FLOOD_BYTES = 256 * 1024 * 1024
_MAX_FLOOD_S = 10.0
# Bytes of a message per character of text; this leaves room for escapes and structure.
_MESSAGE_BYTES_PER_CHARACTER = 16
# Extra characters, so that a secret at the later cut is still complete when it is redacted.
_TEXT_MARGIN = 4096
# A value takes about fifty bytes or more in memory, but as few as two in JSON. A text of any length is one value.
_BYTES_PER_VALUE = 20
_DENSE_WINDOW_BYTES = 256 * 1024
# The length of {"id":1,"error":1}: a shorter line is not an answer.
_SHORTEST_BYTES = 18
_SHOWN_CHARS = 200
_TAIL_BYTES = 512


class Unanswered:
    """The requests that were sent and may still be answered, including those whose callers were cancelled."""

    def __init__(self) -> None:
        self._ids: dict[str, RequestId] = {}

    def add(self, request_id: RequestId) -> None:
        self._ids[str(request_id)] = request_id

    def __contains__(self, request_id: object) -> bool:
        return str(request_id) in self._ids

    def take(self, request_id: RequestId | None) -> RequestId | None:
        """Remove and return the request with this id, or None if there is none. Servers may write 5 as "5"."""
        return self._ids.pop(str(request_id), None)

    def take_only(self) -> RequestId | None:
        """Remove and return the only request; None if there is not exactly one."""
        return self._ids.popitem()[1] if len(self._ids) == 1 else None


class LineReader(asyncio.Protocol):
    """Parses the server's output into messages for the session."""

    def __init__(
        self,
        name: str,
        unanswered: Unanswered,
        *,
        max_message_bytes: int,
        deliver: Callable[[JSONRPCMessage], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._name = name
        self._unanswered = unanswered
        self._max_message_bytes = max_message_bytes
        self._pass_on = deliver
        self._on_lost = on_lost
        self._splitter = LineSplitter(max_message_bytes)
        self._transport: asyncio.ReadTransport | None = None
        self._flood_timer: asyncio.TimerHandle | None = None
        self._num_useless_bytes = 0
        self._num_dropped_lines = 0
        self._head_without_id: bytes | None = None
        """The beginning of a line that is being cut. The end of the line will show which request it answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._num_useless_bytes += len(data)
        for piece in self._splitter.feed(data):
            if isinstance(piece, bytes):
                self._read_line(piece)
            elif isinstance(piece, CutLine):
                self._begin_cut(piece.head)
            else:
                self._end_cut(piece.tail)
        if self._num_useless_bytes > _MAX_FLOOD_BYTES + self._max_message_bytes:
            self._end_flood()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def stop(self) -> None:
        self._cancel_flood_timer()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            if self._num_dropped_lines > 1:
                _logger.warning("%s: %d lines were not JSON-RPC", self._name, self._num_dropped_lines)

    def _read_line(self, line: bytes) -> None:
        if len(line) < _SHORTEST_BYTES or not line.lstrip().startswith(b"{"):
            if line and not line.isspace():
                self._drop(line)
        elif self._is_dense(line):
            self._answer_unreadable(line, _certain_members(line), too_large="the result contains too many values")
        else:
            self._read_object(line)

    def _read_object(self, line: bytes) -> None:
        try:
            value = lenient_json(line)
        except ValueError as error:
            if "recursion" in str(error):
                self._answer_unreadable(line, _certain_members(line), too_large="the result is nested too deeply")
            else:
                self._answer_unreadable(line, _certain_members(line), broken=f"not JSON ({error})")
            return
        message = _message_of(value)
        if message is None:
            self._answer_unreadable(line, value, broken="not a JSON-RPC response")
            return
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._unanswered.take(message.id)
        self._deliver(message)

    def _is_dense(self, data: bytes) -> bool:
        """Return True if `data` may hold so many small values that parsing takes far more memory than its size."""
        limit = self._max_message_bytes // _BYTES_PER_VALUE
        return len(data) > limit and sum(map(data.count, (b",", b"{", b"["))) > limit

    def _answer_unreadable(
        self, line: bytes, members: dict[str, Any], *, too_large: str | None = None, broken: str = ""
    ) -> None:
        """Report an error to the request that the line answers. A line that answers no request is dropped."""
        request_id = None if "method" in members else self._unanswered.take(members.get("id"))
        if request_id is None:
            self._drop(line)
        elif too_large is not None:
            self._answer_too_large(request_id, line, too_large)
        else:
            detail = f"the server's answer is {broken}: {_shown(line)}"
            self._deliver(error_for(request_id, TransportOutcome(trouble=Trouble.BROKEN, detail=detail)))

    def _begin_cut(self, head: bytes) -> None:
        """If a line is too long, answer its request as soon as the id is known, because the line may never end."""
        self._flood_timer = asyncio.get_running_loop().call_later(_MAX_FLOOD_S, self._end_flood)
        members = leading_members(head)
        request_id: RequestId | None = None
        if "method" not in members and "params" not in members:
            if members.get("id") is not None:
                request_id = self._unanswered.take(members["id"])
            elif "result" in members or "error" in members:
                request_id = self._unanswered.take_only()
                self._head_without_id = head if request_id is None else None
        if request_id is not None:
            self._answer_too_large(request_id, head, self._too_long())
        elif self._head_without_id is None:
            self._drop(head)

    def _end_cut(self, tail: bytes) -> None:
        self._cancel_flood_timer()
        head, self._head_without_id = self._head_without_id, None
        if head is not None:
            request_id = self._unanswered.take(id_at_end(tail))
            if request_id is None:
                self._drop(head)
            else:
                self._answer_too_large(request_id, head, self._too_long())

    def _end_flood(self) -> None:
        _logger.warning("%s: the server floods its output without answering, so the session is ended", self._name)
        self._on_lost()

    def _cancel_flood_timer(self) -> None:
        if self._flood_timer is not None:
            self._flood_timer.cancel()
            self._flood_timer = None

    def _too_long(self) -> str:
        return f"the result is longer than {self._max_message_bytes} bytes"

    def _answer_too_large(self, request_id: RequestId, raw: bytes, detail: str) -> None:
        window = raw[:_DENSE_WINDOW_BYTES] if self._is_dense(raw) else raw
        text = beginning_of(window, self._max_message_bytes // _MESSAGE_BYTES_PER_CHARACTER + _TEXT_MARGIN)
        self._deliver(error_for(request_id, TransportOutcome(trouble=Trouble.TOO_LARGE, detail=detail, text=text)))

    def _deliver(self, message: JSONRPCMessage) -> None:
        self._num_useless_bytes = 0
        self._pass_on(message)

    def _drop(self, line: bytes) -> None:
        self._num_dropped_lines += 1
        if self._num_dropped_lines == 1:
            _logger.warning("%s: dropped a line that is not JSON-RPC or is too long: %s", self._name, _shown(line))


def _certain_members(line: bytes) -> dict[str, Any]:
    """Return the members that are certain without parsing the line: the first ones, or else the id at its end."""
    return {"id": id_at_end(line[-_TAIL_BYTES:]), **leading_members(line)}


def _shown(line: bytes) -> str:
    # Redact before cutting, because half a secret is not recognized.
    return SECRETS.redact(line[: 16 * _SHOWN_CHARS].decode(errors="replace"))[:_SHOWN_CHARS]


def _message_of(value: dict[str, Any]) -> JSONRPCMessage | None:
    """Validate a message; None if it is invalid. Choosing the type by its members is faster than trying all four."""
    if "method" in value:
        kind = JSONRPCRequest if "id" in value else JSONRPCNotification
    else:
        kind = JSONRPCResponse if "result" in value else JSONRPCError
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


@asynccontextmanager
async def stdio_transport(
    child: ChildProcess,
    *,
    max_message_bytes: int,
    on_end: Callable[[], None],
    on_message: Callable[[], None] | None = None,
) -> AsyncGenerator[tuple[MemoryObjectReceiveStream[SessionMessage], _Outbox], None]:
    """Open the streams of a session with a child that was started with pipes. The caller still has to stop the child.

    `on_end` is called once, if the server closes its streams or sends too much, before any waiting call fails.
    `on_message` is called for each message. A line that is longer than `max_message_bytes`, or that cannot be parsed,
    is replaced by an error that answers its request; see `messages.py`.
    """
    loop = asyncio.get_running_loop()
    unanswered = Unanswered()
    # Unbounded, because asyncio calls the reader, which cannot wait.
    sender, inbox = anyio.create_memory_object_stream[SessionMessage](math.inf)
    is_over = False

    def deliver(message: JSONRPCMessage) -> None:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            sender.send_nowait(SessionMessage(message))
        if on_message is not None:
            on_message()

    def close() -> None:
        nonlocal is_over
        is_over = True
        sender.close()
        reader.stop()
        outbox.stop()

    def lose() -> None:
        if not is_over:
            on_end()
            close()

    reader = LineReader(child.log.name, unanswered, max_message_bytes=max_message_bytes, deliver=deliver, on_lost=lose)
    outbox = _Outbox(unanswered, on_lost=lose)
    try:
        await loop.connect_read_pipe(lambda: reader, _duplicate(child.stdout, "rb"))
        await loop.connect_write_pipe(lambda: outbox, _duplicate(child.stdin, "wb"))
        yield inbox, outbox
    finally:
        close()
        inbox.close()


def _duplicate(pipe: IO[bytes] | None, mode: str) -> IO[bytes]:
    # Duplicated: asyncio must not watch a descriptor that the child closes when it is stopped.
    assert pipe is not None, "the child was started without pipes"
    return os.fdopen(os.dup(pipe.fileno()), mode, buffering=0)


class _Outbox(asyncio.BaseProtocol):
    """Writes the messages of the session. A request waits while the server does not read; nothing else waits."""

    def __init__(self, unanswered: Unanswered, *, on_lost: Callable[[], None]) -> None:
        self._unanswered = unanswered
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._may_write = asyncio.Event()
        self._is_over = False

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if isinstance(message, JSONRPCRequest):
            while not self._may_write.is_set():
                await self._may_write.wait()
            self._unanswered.add(message.id)
        elif self._is_needless(message):
            return
        if self._is_over or self._transport is None:
            raise anyio.BrokenResourceError
        self._transport.write(data)

    def _is_needless(self, message: JSONRPCMessage) -> bool:
        """Return True if the message cancels a request that was not written, because the server reads nothing."""
        return (
            isinstance(message, JSONRPCNotification)
            and message.method == "notifications/cancelled"
            and (message.params or {}).get("requestId") not in self._unanswered
        )

    def stop(self) -> None:
        self._is_over = True
        self._may_write.set()
        if self._transport is not None and not self._transport.is_closing():
            # Drops unwritten data: no caller waits for its answer.
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        self._may_write.set()

    def pause_writing(self) -> None:
        if not self._is_over:
            self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    async def aclose(self) -> None:
        self._is_over = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
