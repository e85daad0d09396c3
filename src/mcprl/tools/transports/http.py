"""The SDK's streamable HTTP transport, changed so that a failed request fails one call and not the session.

The SDK ends a session, with every call in it, if a connection fails or a body cannot be parsed. So it gets an HTTP
client that never fails: a failed request is answered with a JSON-RPC error (see `mcprl.tools.transports.messages`).
The SDK still does the handshake, sessions, redirects and resumption.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self
from urllib.request import getproxies

import anyio
import httpx2
from anyio.abc import TaskGroup
from mcp.client.streamable_http import LAST_EVENT_ID, MCP_SESSION_ID, streamable_http_client
from mcp_types import JSONRPCError, JSONRPCResponse

from mcprl.tools.specs import ServerSpec
from mcprl.tools.transports.exchanges import (
    ABANDONED,
    AnswerLimits,
    EventStream,
    Exchange,
    answers,
    broken,
    cancelled_id_of,
    connection_outcome,
    error_event,
    read_repaired,
    refuses_session,
    request_id_of,
    status_outcome,
    too_large,
)
from mcprl.tools.transports.messages import TransportOutcome, Trouble, error_for


class KeptOpen:
    """A stream of the SDK that stays open until the transport ends, even if the session closes it earlier.

    Between these two moments the SDK ends its session with the server. An answer that arrives then would hit a closed
    stream and raise an error.
    """

    def __init__(
        self, stream: Any, on_end: Callable[[], None] | None = None, on_message: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._on_end = on_end
        self._on_message = on_message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            message = await self._stream.__anext__()
        except StopAsyncIteration:
            if self._on_end is not None:
                self._on_end()
            raise
        if self._on_message is not None:
            self._on_message()
        return message

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Do nothing, because the transport closes the stream."""


EVENTS = "text/event-stream"
_JSON = "application/json"


def error_response(request: httpx2.Request, request_id: str | int, outcome: TransportOutcome) -> httpx2.Response:
    """Convert an outcome to a response that answers the request with an error."""
    content = error_for(request_id, outcome).model_dump_json().encode()
    return httpx2.Response(200, headers={"content-type": _JSON}, content=content, request=request)


def has_length_within(max_bytes: int, headers: httpx2.Headers) -> bool:
    """Return True if the body is uncompressed and its content length, which HTTP enforces, is within the limit."""
    length = headers.get("content-length", "")
    return length.isdecimal() and int(length) <= max_bytes and "content-encoding" not in headers


def json_response(request: httpx2.Request, response: httpx2.Response, body: bytes, message: object) -> httpx2.Response:
    """Return the JSON-RPC message `body` as the response to a request."""
    if isinstance(message, JSONRPCResponse) and _is_read(response):
        return response
    status = response.status_code
    if response.is_success:
        # The SDK delivers an error without an id only if the HTTP status is a failure.
        status = 400 if isinstance(message, JSONRPCError) else 200
    headers = {"content-type": _JSON, **_session_header(response)}
    return httpx2.Response(status, headers=headers, content=body, request=request)


def events_response(
    request: httpx2.Request, stream: httpx2.AsyncByteStream, response: httpx2.Response
) -> httpx2.Response:
    """Return a copy of the response that has our event stream as its body."""
    headers = {"content-type": EVENTS, **_session_header(response)}
    return httpx2.Response(200, headers=headers, stream=stream, request=request)


def _is_read(response: httpx2.Response) -> bool:
    """Return True if the SDK can parse this response unchanged."""
    if response.status_code != 200 or not response.headers.get("content-type", "").startswith(_JSON):
        return False
    try:
        return bool(response.content)
    except httpx2.ResponseNotRead:
        return False


def _session_header(response: httpx2.Response) -> dict[str, str]:
    session = response.headers.get(MCP_SESSION_ID)
    return {} if session is None else {MCP_SESSION_ID: session}


_MAX_IN_FLIGHT = 8


class SmallPools(httpx2.AsyncBaseTransport):
    """Sends a request through the first pool with free capacity, or through a new pool.

    A single large pool would take quadratic time for many requests.
    """

    def __init__(self, make_pool: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make_pool = make_pool
        # Per pool, the number of requests whose responses are not closed yet.
        self._in_flight: dict[httpx2.AsyncBaseTransport, int] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = next((pool for pool, count in self._in_flight.items() if count < _MAX_IN_FLIGHT), None)
        if pool is None:
            pool = self._make_pool()
        self._in_flight[pool] = self._in_flight.get(pool, 0) + 1
        try:
            response = await pool.handle_async_request(request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
        except BaseException:
            self._release(pool)
            raise
        response.stream = _CountedBody(response.stream, partial(self._release, pool))
        return response

    def _release(self, pool: httpx2.AsyncBaseTransport) -> None:
        self._in_flight[pool] -= 1

    async def aclose(self) -> None:
        for pool in self._in_flight:
            await pool.aclose()


class _CountedBody(httpx2.AsyncByteStream):
    """A body that calls `on_close` once, when it is closed."""

    def __init__(self, body: httpx2.AsyncByteStream, on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close: Callable[[], None] | None = on_close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()

    async def aclose(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        await self._body.aclose()


_logger = logging.getLogger(__name__)

_CONNECT_S = 30.0
# Common servers close an idle connection after five seconds. A request sent at that moment would be lost, and the
# client could not tell whether the server received it.
_KEEPALIVE_S = 4.0
_MAX_IDLE_CONNECTIONS = 64
_LIMITS = httpx2.Limits(
    max_connections=None, max_keepalive_connections=_MAX_IDLE_CONNECTIONS, keepalive_expiry=_KEEPALIVE_S
)
_NOTIFY_S = 5.0
_GOODBYE_S = 2.0
_LAST_ANSWERS_S = 0.1
_HAND_OVER_S = 0.01
# More than the policy sees, so that a secret at the cut is still complete when it is redacted.
_TEXT_MARGIN = 4096
# How often the SDK tries to resume a broken stream.
_RESUMPTIONS = 2

_SESSION_LOST = TransportOutcome(
    trouble=Trouble.UNREACHABLE, detail="the server no longer knows the session", delivered=False
)


@asynccontextmanager
async def http_transport(
    url: str,
    spec: ServerSpec,
    *,
    max_message_bytes: int,
    on_end: Callable[[], None] | None = None,
    on_message: Callable[[], None] | None = None,
    on_session_lost: Callable[[], None] | None = None,
) -> AsyncGenerator[Any, None]:
    """Open the read and write streams of a session, for the SDK's Client.

    Requests in flight are not limited in number, and have no timeout except for connecting: callers have deadlines.
    `on_message` is called for each message. `on_end` is called after the last message, before any waiting call fails.
    `on_session_lost` is called once if the server no longer knows the session, so that no request can succeed. Before
    that, the requests in flight have a moment to fail on their own.
    """
    background = anyio.create_task_group()
    client = _UnfailingClient(
        spec,
        AnswerLimits(max_bytes=max_message_bytes, text_characters=spec.settings.max_result_bytes + _TEXT_MARGIN),
        background,
        on_session_lost,
    )
    async with client, background:
        # Our client limits the size of events instead, because it can answer the request whose event is too large.
        async with streamable_http_client(url, http_client=client, max_sse_event_size=None) as (reading, writing):
            yield KeptOpen(reading, on_end, on_message), KeptOpen(writing)
        background.cancel_scope.cancel()


def _small_pools(*, trust_env: bool) -> SmallPools:
    # Created once, because it loads all certificates of the machine.
    certificates = httpx2.create_ssl_context(trust_env=trust_env)
    return SmallPools(lambda: httpx2.AsyncHTTPTransport(verify=certificates, limits=_LIMITS, trust_env=trust_env))


class _UnfailingClient(httpx2.AsyncClient):
    """An HTTP client for the SDK that always returns an answer to a POST with a JSON-RPC request."""

    def __init__(
        self, spec: ServerSpec, limits: AnswerLimits, background: TaskGroup, on_session_lost: Callable[[], None] | None
    ) -> None:
        # A server that we started is on this machine; a proxy from the environment could not reach it.
        trust_env = not spec.settings.start
        super().__init__(
            headers=dict(spec.headers),
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=_LIMITS,
            # httpx2 uses proxies from the environment only with its default transport.
            transport=None if trust_env and getproxies() else _small_pools(trust_env=trust_env),
            trust_env=trust_env,
        )
        self._name = spec.name
        self._answer_limits = limits
        self._background = background
        self._on_session_lost = on_session_lost
        self._exchanges: dict[str | int, Exchange] = {}
        self._all_answered = anyio.Event()

    async def send(self, request: httpx2.Request, **_: Any) -> httpx2.Response:
        """Send a request for the SDK, which always asks for a stream and follows redirects itself."""
        match request.method:
            case "POST":
                content = await request.aread()
                request_id = request_id_of(content)
                if request_id is None:
                    return await self._notify(request, content)
                return await self._ask(request, request_id)
            case "GET":
                return await self._listen(request)
            case _:
                return await self._say_goodbye(request)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().send(request, stream=True, follow_redirects=False)
        if response.next_request is None:
            return response
        # The SDK would read the body of a redirect without a limit, and fail if it cannot.
        await response.aclose()
        redirect = httpx2.Response(response.status_code, headers=response.headers, content=b"", request=request)
        redirect.next_request = response.next_request
        return redirect

    # Requests: each one gets an answer.

    async def _ask(self, request: httpx2.Request, request_id: str | int) -> httpx2.Response:
        self._exchanges[request_id] = exchange = Exchange(request_id)
        answer: httpx2.Response | None = None
        try:
            with exchange.until_abandoned():
                answer = await self._answer_to(request, exchange)
        finally:
            if answer is None or not isinstance(answer.stream, EventStream):
                self._finish(exchange)
        return answer if answer is not None else error_response(request, exchange.request_id, ABANDONED)

    def _finish(self, exchange: Exchange) -> None:
        if self._exchanges.get(exchange.request_id) is exchange:
            del self._exchanges[exchange.request_id]
        if not self._exchanges:
            self._all_answered.set()

    async def _answer_to(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        response: httpx2.Response | None = None
        try:
            response = await self._send(request)
            return await self._read_answer(request, response, exchange)
        except httpx2.RequestError as error:
            return error_response(request, exchange.request_id, connection_outcome(error))
        except BaseException:
            if response is not None:
                await response.aclose()
            raise

    async def _read_answer(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        if response.next_request is not None:
            return response
        content_type = response.headers.get("content-type", "").lower()
        if response.is_success and content_type.startswith(EVENTS):
            return await self._read_events(request, response, exchange)
        body = await self._read_body(response)
        if isinstance(body, TransportOutcome):
            return error_response(request, exchange.request_id, body)
        message = None
        if "json" in content_type:
            body, message = read_repaired(body, self._answer_limits)
        if not response.is_success:
            return self._read_failure(request, response, exchange, body, message)
        if answers(message, exchange.request_id):
            return json_response(request, response, body, message)
        if message is None:
            message = status_outcome(response.status_code, response.headers, body)
        elif not isinstance(message, TransportOutcome):
            message = broken("the response is not the answer to this request", body)
        return error_response(request, exchange.request_id, message)

    def _read_failure(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange, body: bytes, message: object
    ) -> httpx2.Response:
        if MCP_SESSION_ID in request.headers and refuses_session(response.status_code, message):
            self._lose_session()
            return error_response(request, exchange.request_id, _SESSION_LOST)
        outcome = status_outcome(response.status_code, response.headers, body)
        if isinstance(message, JSONRPCError) and outcome.trouble is not Trouble.BUSY:
            # The SDK negotiates versions with such errors, so pass them on unchanged.
            return json_response(request, response, body, message)
        return error_response(request, exchange.request_id, outcome)

    async def _read_body(self, response: httpx2.Response) -> bytes | TransportOutcome:
        if has_length_within(self._answer_limits.max_bytes, response.headers):
            return await response.aread()
        pieces: list[bytes] = []
        num_bytes = 0
        async with contextlib.aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                pieces.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > self._answer_limits.max_bytes:
                    break
        body = b"".join(pieces)
        if num_bytes <= self._answer_limits.max_bytes:
            return body
        if response.is_success:
            return too_large(body, self._answer_limits)
        return status_outcome(response.status_code, response.headers, body)

    async def _read_events(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> httpx2.Response:
        stream = self._event_stream(response, exchange)
        try:
            first = await stream.first_event()
        except BaseException:
            await stream.aclose()
            raise
        if first is not None and answers(stream.answer, exchange.request_id):
            # The usual case. The SDK handles a plain response with less time and memory than an event.
            await stream.aclose()
            return json_response(request, response, first.data, stream.answer)
        return events_response(request, stream, response)

    def _event_stream(self, response: httpx2.Response, exchange: Exchange | None) -> EventStream:
        return EventStream(response, exchange, self._answer_limits, background=self._background, finish=self._finish)

    def _lose_session(self) -> None:
        report, self._on_session_lost = self._on_session_lost, None
        if report is not None:
            self._background.start_soon(self._report_loss, report)

    async def _report_loss(self, report: Callable[[], None]) -> None:
        # The callback ends the session and the requests in flight. Most of these are about to be rejected by the
        # server, which makes a retry safe, so wait for the rejections first.
        with anyio.move_on_after(_LAST_ANSWERS_S):
            self._all_answered = anyio.Event()
            if self._exchanges:
                await self._all_answered.wait()
        await anyio.sleep(_HAND_OVER_S)
        report()

    # Everything except requests: it must neither end nor delay the session.

    async def _notify(self, request: httpx2.Request, content: bytes) -> httpx2.Response:
        cancelled = cancelled_id_of(content)
        if cancelled is not None and (exchange := self._exchanges.get(cancelled)) is not None:
            exchange.abandon()
        if b'"notifications/initialized"' in content:
            # Servers reject requests that arrive before this notification.
            await self._post_notification(request)
        else:
            # In the background, because the SDK sends nothing else until this returns.
            self._background.start_soon(self._post_notification, request)
        return httpx2.Response(202, request=request)

    async def _post_notification(self, request: httpx2.Request) -> None:
        with anyio.move_on_after(_NOTIFY_S):
            try:
                response = await self._send(request)
                await response.aclose()
            except httpx2.RequestError as error:
                _logger.warning("server %r: a notification was lost: %s", self._name, connection_outcome(error).detail)
                return
            if response.status_code == 404 and MCP_SESSION_ID in request.headers:
                self._lose_session()
            elif response.is_error:
                _logger.warning("server %r: a notification was rejected: HTTP %d", self._name, response.status_code)
            return
        _logger.warning("server %r: a notification was not accepted within %g s", self._name, _NOTIFY_S)

    async def _say_goodbye(self, request: httpx2.Request) -> httpx2.Response:
        with anyio.move_on_after(_GOODBYE_S):
            try:
                response = await self._send(request)
                await response.aclose()
                return httpx2.Response(response.status_code, content=b"", request=request)
            except httpx2.RequestError as error:
                _logger.debug(
                    "server %r: the session could not be ended: %s", self._name, connection_outcome(error).detail
                )
        return httpx2.Response(405, request=request)

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """Open a stream for messages that answer no request, or resume a broken stream.

        The SDK handles failures and retries. If the SDK is about to give up on a request, that request is answered
        here.
        """
        last = request.headers.get(LAST_EVENT_ID)
        exchange = next((one for one in self._exchanges.values() if last and one.last_event_id == last), None)
        if exchange is not None and exchange.is_abandoned:
            return self._give_up(request, exchange, ABANDONED)
        try:
            response = await self._send(request)
        except httpx2.RequestError as error:
            if exchange is None or not _is_last_try(exchange):
                raise
            # The server has already received the request itself.
            return self._give_up(request, exchange, replace(connection_outcome(error), delivered=True))
        if response.is_success and response.headers.get("content-type", "").lower().startswith(EVENTS):
            if exchange is not None:
                exchange.failed_resumptions = 0
            return events_response(request, self._event_stream(response, exchange), response)
        if exchange is None or not _is_last_try(exchange):
            return response
        await response.aclose()
        return self._give_up(request, exchange, broken(f"HTTP {response.status_code} instead of an answer", b""))

    def _give_up(self, request: httpx2.Request, exchange: Exchange, outcome: TransportOutcome) -> httpx2.Response:
        self._finish(exchange)
        content = error_event(error_for(exchange.request_id, outcome)).raw
        return httpx2.Response(200, headers={"content-type": EVENTS}, content=content, request=request)


def _is_last_try(exchange: Exchange) -> bool:
    exchange.failed_resumptions += 1
    return exchange.failed_resumptions == _RESUMPTIONS
