"""Messages to and from a server over its standard streams, in time linear in their size and in bounded memory.

In the place of the SDK's own stdio transport, which is quadratic in the size of a result, keeps results of any size,
and leaves a call without an answer where its answer cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import IO, Any, Self, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
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

__all__ = ["LineReader", "Unanswered", "stdio_transport"]


_logger = logging.getLogger(__name__)

_MAX_FLOOD_BYTES = 256 * 1024 * 1024
_MAX_FLOOD_S = 10.0
# The share of a message that may be text for the policy: the rest is room for escapes and structure.
_MESSAGE_BYTES_PER_CHARACTER = 16
# So that a secret at the place where the text is cut later is still whole when it is looked for.
_TEXT_MARGIN = 4096
# A value in memory is some fifty bytes or more, in JSON it may be two. Text is one value, however long.
_BYTES_PER_VALUE = 20
_DENSE_WINDOW_BYTES = 256 * 1024
# As long as {"id":1,"error":1}: what is shorter answers nothing.
_SHORTEST_BYTES = 18
_SHOWN_CHARS = 200
_TAIL_BYTES = 512


class Unanswered:
    """The requests that were sent and may still be answered, also those whose callers wait no more."""

    def __init__(self) -> None:
        self._ids: dict[str, RequestId] = {}

    def add(self, request_id: RequestId) -> None:
        self._ids[str(request_id)] = request_id

    def __contains__(self, request_id: object) -> bool:
        return str(request_id) in self._ids

    def take(self, request_id: RequestId | None) -> RequestId | None:
        """The request, which is answered with this; None where there is none of that id. Servers may write 5 as "5"."""
        return self._ids.pop(str(request_id), None)

    def take_only(self) -> RequestId | None:
        """The request, where there is just one."""
        return self._ids.popitem()[1] if len(self._ids) == 1 else None


class LineReader(asyncio.Protocol):
    """Turns what the server writes into messages for the session."""

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
        """Of a line that is being cut: its beginning, until its end tells which request it answers."""

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
                _logger.warning("%s: %d lines were no JSON-RPC", self._name, self._num_dropped_lines)

    def _read_line(self, line: bytes) -> None:
        if len(line) < _SHORTEST_BYTES or not line.lstrip().startswith(b"{"):
            if line and not line.isspace():
                self._drop(line)
        elif self._is_dense(line):
            self._answer_unreadable(line, _certain_members(line), too_large="the result holds too many values")
        else:
            self._read_object(line)

    def _read_object(self, line: bytes) -> None:
        try:
            value = lenient_json(line)
        except ValueError as error:
            if "recursion" in str(error):
                self._answer_unreadable(line, _certain_members(line), too_large="the result is nested too deeply")
            else:
                self._answer_unreadable(line, _certain_members(line), broken=f"no JSON ({error})")
            return
        message = _message_of(value)
        if message is None:
            self._answer_unreadable(line, value, broken="no JSON-RPC response")
            return
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._unanswered.take(message.id)
        self._deliver(message)

    def _is_dense(self, data: bytes) -> bool:
        """Whether it may hold so many values that they would take much more memory, and time, than their bytes do."""
        limit = self._max_message_bytes // _BYTES_PER_VALUE
        return len(data) > limit and sum(map(data.count, (b",", b"{", b"["))) > limit

    def _answer_unreadable(
        self, line: bytes, members: dict[str, Any], *, too_large: str | None = None, broken: str = ""
    ) -> None:
        """Answer the request that the line was meant to answer. A line without one is dropped."""
        request_id = None if "method" in members else self._unanswered.take(members.get("id"))
        if request_id is None:
            self._drop(line)
        elif too_large is not None:
            self._answer_too_large(request_id, line, too_large)
        else:
            detail = f"the server's answer is {broken}: {_shown(line)}"
            self._deliver(error_for(request_id, TransportOutcome(trouble=Trouble.BROKEN, detail=detail)))

    def _begin_cut(self, head: bytes) -> None:
        """Answer as soon as it is known which request the line answers: it may never end."""
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
        _logger.warning("%s: the server does not end a line, or writes nothing of use; it is given up", self._name)
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
            _logger.warning("%s: a line that is no JSON-RPC, or too long, was dropped: %s", self._name, _shown(line))


def _certain_members(line: bytes) -> dict[str, Any]:
    """What is known of a message without reading it as a whole: its first members, or else its id at its end."""
    return {"id": id_at_end(line[-_TAIL_BYTES:]), **leading_members(line)}


def _shown(line: bytes) -> str:
    # Struck out before it is cut: half a secret would not be recognised.
    return SECRETS.redact(line[: 16 * _SHOWN_CHARS].decode(errors="replace"))[:_SHOWN_CHARS]


def _message_of(value: dict[str, Any]) -> JSONRPCMessage | None:
    """The message, or None where it is none. Told apart by their members: trying all four kinds takes four times."""
    if "method" in value:
        kind = JSONRPCRequest if "id" in value else JSONRPCNotification
    else:
        kind = JSONRPCResponse if "result" in value else JSONRPCError
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


_MESSAGES_BETWEEN_PAUSES = 100


@asynccontextmanager
async def stdio_transport(
    child: ChildProcess,
    *,
    max_message_bytes: int,
    on_end: Callable[[], None],
    on_message: Callable[[], None] | None = None,
) -> AsyncGenerator[tuple[_Inbox, _Outbox], None]:
    """The streams of a session with a child that was started with pipes. The child stays the caller's to stop.

    `on_end` is called once, when the server no longer reads or writes, or floods us, before any waiting call hears of
    it. `on_message` is called for each message that came. A line that is longer than `max_message_bytes`, or that
    cannot be read, becomes an error that answers the request it belongs to; see `messages.py`.
    """
    loop = asyncio.get_running_loop()
    unanswered = Unanswered()
    inbox = _Inbox()

    def deliver(message: JSONRPCMessage) -> None:
        inbox.put(message)
        if on_message is not None:
            on_message()

    def close() -> None:
        inbox.end()
        reader.stop()
        outbox.stop()

    def lose() -> None:
        if not inbox.is_over:
            on_end()
            close()

    reader = LineReader(
        child.log.name,
        unanswered,
        max_message_bytes=max_message_bytes,
        deliver=deliver,
        on_lost=lose,
    )
    outbox = _Outbox(unanswered, on_lost=lose)
    try:
        await loop.connect_read_pipe(lambda: reader, _duplicate(child.stdout, "rb"))
        await loop.connect_write_pipe(lambda: outbox, _duplicate(child.stdin, "wb"))
        yield inbox, outbox
    finally:
        close()


def _duplicate(pipe: IO[bytes] | None, mode: str) -> IO[bytes]:
    # The child closes its own when it is stopped; a number that asyncio watches must not be closed under it.
    assert pipe is not None, "the child was started without pipes"
    return os.fdopen(os.dup(pipe.fileno()), mode, buffering=0)


class _Inbox:
    """What the session reads."""

    def __init__(self) -> None:
        self._messages: deque[SessionMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._num_without_pause = 0
        self.is_over = False

    def put(self, message: JSONRPCMessage) -> None:
        if not self.is_over:
            self._messages.append(SessionMessage(message))
            self._wake()

    def end(self) -> None:
        """What has arrived is still read."""
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        self._num_without_pause += 1
        if self._num_without_pause == _MESSAGES_BETWEEN_PAUSES:
            self._num_without_pause = 0
            await asyncio.sleep(0)
        while not self._messages:
            if self.is_over:
                raise StopAsyncIteration
            self._num_without_pause = 0
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._messages.popleft()

    async def receive(self) -> SessionMessage:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        self._messages.clear()
        self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Outbox(asyncio.BaseProtocol):
    """What the session writes. A request waits while the server does not read; nothing else ever waits."""

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
        """Whether it takes back a request that the server never saw, because it waited for its turn to be written."""
        return (
            isinstance(message, JSONRPCNotification)
            and message.method == "notifications/cancelled"
            and (message.params or {}).get("requestId") not in self._unanswered
        )

    def stop(self) -> None:
        self._is_over = True
        self._may_write.set()
        if self._transport is not None and not self._transport.is_closing():
            # What is still unwritten is dropped: nobody waits for its answer.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
