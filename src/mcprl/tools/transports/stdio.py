"""Messages to and from a server over its standard streams, in time linear in their size and in bounded memory.

In the place of the SDK's own stdio transport, which is quadratic in the size of a result, keeps results of any size,
and leaves a call without an answer where its answer cannot be read.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import IO, Self, cast

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest

from mcprl.processes import ChildProcess
from mcprl.tools.transports.line_reader import LineReader, Unanswered

__all__ = ["stdio_transport"]

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
    cannot be read, becomes an error that answers the request it belongs to; see `wire.py`.
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
