"""A request on its way over HTTP, and the stream of events in which its answer may come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp_types import JSONRPCError, JSONRPCResponse

from mcprl.tools.transports.events import EventSplitter, ServerEvent
from mcprl.tools.transports.http_answers import AnswerLimits, connection_outcome, read_repaired, too_large
from mcprl.tools.transports.wire import TransportOutcome, Trouble, error_for

__all__ = ["ABANDONED", "EventStream", "Exchange", "error_event"]

ABANDONED = TransportOutcome(trouble=Trouble.UNREACHABLE, detail="the call was cancelled")
_ENDED = TransportOutcome(trouble=Trouble.UNREACHABLE, detail="the stream of events ended without an answer")

_DRAIN_S = 1.0
_DRAIN_BYTES = 65536


class Exchange:
    """One request until its answer: over its POST, and over the GETs that ask for the rest of a broken stream."""

    def __init__(self, request_id: str | int) -> None:
        self.request_id = request_id
        self.last_event_id = ""
        """Where a broken stream can be resumed; empty where it cannot."""
        self.failed_resumptions = 0
        self.is_abandoned = False
        self._scope: anyio.CancelScope | None = None

    def abandon(self) -> None:
        """Stop waiting: nobody wants the answer."""
        self.is_abandoned = True
        if self._scope is not None:
            self._scope.cancel()

    @contextmanager
    def until_abandoned(self) -> Generator[None]:
        """Ends the block early, and without an exception, when the exchange is abandoned."""
        with anyio.CancelScope() as scope:
            if self.is_abandoned:
                scope.cancel()
            self._scope = scope
            try:
                yield
            finally:
                self._scope = None


def error_event(error: JSONRPCError) -> ServerEvent:
    """An error in the place of the answer."""
    data = error.model_dump_json().encode()
    return ServerEvent("message", data, "", b"data: " + data + b"\n\n")


class EventStream(httpx2.AsyncByteStream):
    """The events of a response, for the SDK to read.

    A stream that belongs to a request ends with its answer, or with an error in its place, or else where the SDK can
    resume it. One that belongs to none just ends, and the SDK opens it again.
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
        """What the last event says, once that is the answer to the request."""
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
        """The first event, which a reader of the stream gets as well; None where there is none."""
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
        """Free the connection. The exchange goes on only where the stream broke and can be resumed."""
        exchange = self._exchange
        if exchange is not None and (self.answer is not None or not self._is_over):
            self._finish(exchange)
        if self.answer is not None and not self._is_over:
            # The connection can be used again once the end of the body is read, which no caller should wait for.
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
        """The next event as it arrives, or what stands in its place where none does."""
        while not self._arrived:
            if self._splitter.is_too_large:
                return self._answer(too_large(self._splitter.beginning, self._limits))
            try:
                chunk = await anext(self._chunks, None)
            except httpx2.RequestError as error:
                # The request was received, or there would be no stream.
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
            pass  # the answer was there before: only the connection is lost
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._chunks.aclose()
        await self._response.aclose()
