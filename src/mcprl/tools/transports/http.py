"""The SDK's streamable HTTP transport, made so that one failed request is one failed call and nothing more.

The SDK ends a session, with every call in it, when a connection fails or a body cannot be read. So it is given a
client that does not fail: what goes wrong with a request is answered as a JSON-RPC error for that request (see
`mcprl.tools.transports.messages`). The handshake, sessions, redirects and resumption stay the SDK's own.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
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

__all__ = ["http_transport"]


class KeptOpen:
    """A stream of the SDK that is closed when the transport ends, and not already when the session lets go of it.

    In between, the SDK ends its session with the server, and an answer that arrives then would find no stream and be
    raised as an error.
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
        """Leave it open."""


EVENTS = "text/event-stream"
_JSON = "application/json"


def error_response(request: httpx2.Request, request_id: str | int, outcome: TransportOutcome) -> httpx2.Response:
    """An outcome as the answer to a request."""
    content = error_for(request_id, outcome).model_dump_json().encode()
    return httpx2.Response(200, headers={"content-type": _JSON}, content=content, request=request)


def says_that_it_is_at_most(max_bytes: int, headers: httpx2.Headers) -> bool:
    """Whether a body has an announced length, which HTTP holds it to, and is not packed into less."""
    length = headers.get("content-length", "")
    return length.isdecimal() and int(length) <= max_bytes and "content-encoding" not in headers


def json_response(request: httpx2.Request, response: httpx2.Response, body: bytes, message: object) -> httpx2.Response:
    """The message in the body of a response, whole and uncompressed, as the answer to a request."""
    if isinstance(message, JSONRPCResponse) and _is_read(response):
        return response
    status = response.status_code
    if response.is_success:
        # The SDK addresses an error to its request, whatever id it has, only where the status is one of failure.
        status = 400 if isinstance(message, JSONRPCError) else 200
    headers = {"content-type": _JSON, **_session_header(response)}
    return httpx2.Response(status, headers=headers, content=body, request=request)


def events_response(
    request: httpx2.Request, stream: httpx2.AsyncByteStream, response: httpx2.Response
) -> httpx2.Response:
    """A stream of events in the place of that of a response."""
    headers = {"content-type": EVENTS, **_session_header(response)}
    return httpx2.Response(200, headers=headers, stream=stream, request=request)


def _is_read(response: httpx2.Response) -> bool:
    """Whether the SDK can read the answer from this response itself."""
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
    """Sends a request through the first pool that has room, and opens another where none has."""

    def __init__(self, make_pool: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._make_pool = make_pool
        self._pools: list[_Pool] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = next((pool for pool in self._pools if pool.in_flight < _MAX_IN_FLIGHT), None)
        if pool is None:
            pool = _Pool(self._make_pool())
            self._pools.append(pool)
        return await pool.handle(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.transport.aclose()


class _Pool:
    """One pool, and how many requests are on their way in it: until their bodies are read or let go."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.in_flight = 0

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.in_flight += 1
        try:
            response = await self.transport.handle_async_request(request)
            assert isinstance(response.stream, httpx2.AsyncByteStream)
        except BaseException:
            self.in_flight -= 1
            raise
        response.stream = _CountedBody(response.stream, self)
        return response


class _CountedBody(httpx2.AsyncByteStream):
    """A body that tells its pool when it is closed."""

    def __init__(self, body: httpx2.AsyncByteStream, pool: _Pool) -> None:
        self._body = body
        self._pool: _Pool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.__aiter__()

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.in_flight -= 1
        await self._body.aclose()


_logger = logging.getLogger(__name__)

_CONNECT_S = 30.0
# Shorter than the five seconds after which common servers close an idle connection: a request that crosses with the
# closing is lost, and nobody can tell whether it was read.
_KEEPALIVE_S = 4.0
_MAX_IDLE_CONNECTIONS = 64
_LIMITS = httpx2.Limits(
    max_connections=None, max_keepalive_connections=_MAX_IDLE_CONNECTIONS, keepalive_expiry=_KEEPALIVE_S
)
_NOTIFY_S = 5.0
_GOODBYE_S = 2.0
_LAST_ANSWERS_S = 0.1
_HAND_OVER_S = 0.01
# Beyond what the policy is shown, so that a secret at the cut is still whole when it is looked for.
_TEXT_MARGIN = 4096
# The SDK asks twice for the rest of a stream that broke, then gives up.
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
    """The reading and the writing stream of a session, for the SDK's Client.

    There is no limit on the number of requests in flight, nor on time except for connecting: deadlines are the
    caller's. `on_message` is called for each message that came, `on_end` when there will be no more, before any waiting
    call hears of it. `on_session_lost` is called once when the server says that it no longer knows the session: no
    request can succeed in it any more. The requests in flight have had a moment to hear so by then.
    """
    background = anyio.create_task_group()
    client = _UnfailingClient(
        spec,
        AnswerLimits(max_bytes=max_message_bytes, text_characters=spec.settings.max_result_bytes + _TEXT_MARGIN),
        background,
        on_session_lost,
    )
    async with client, background:
        # Events are limited by our client, which can answer the request that a too large one belongs to.
        async with streamable_http_client(url, http_client=client, max_sse_event_size=None) as (reading, writing):
            yield KeptOpen(reading, on_end, on_message), KeptOpen(writing)
        background.cancel_scope.cancel()


def _small_pools(*, trust_env: bool) -> SmallPools:
    # Made once: it reads all certificates of the machine.
    certificates = httpx2.create_ssl_context(trust_env=trust_env)
    return SmallPools(lambda: httpx2.AsyncHTTPTransport(verify=certificates, limits=_LIMITS, trust_env=trust_env))


class _UnfailingClient(httpx2.AsyncClient):
    """An HTTP client for the SDK, in which a POST with a JSON-RPC request is always answered, come what may."""

    def __init__(
        self,
        spec: ServerSpec,
        limits: AnswerLimits,
        background: TaskGroup,
        on_session_lost: Callable[[], None] | None,
    ) -> None:
        # A server we started is on this machine: a proxy from the environment could not reach it.
        trust_env = not spec.settings.start
        super().__init__(
            headers=dict(spec.headers),
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=_LIMITS,
            # The client reads proxies from the environment only where the transport is its own.
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
        """Send a request of the SDK, which always asks for a stream and follows redirects itself."""
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
        # The SDK reads the body of a redirect before it follows, without a limit and without a net.
        await response.aclose()
        redirect = httpx2.Response(response.status_code, headers=response.headers, content=b"", request=request)
        redirect.next_request = response.next_request
        return redirect

    # Requests: each is answered.

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
            message = broken("what came is not the answer to this request", body)
        return error_response(request, exchange.request_id, message)

    def _read_failure(
        self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange, body: bytes, message: object
    ) -> httpx2.Response:
        if MCP_SESSION_ID in request.headers and refuses_session(response.status_code, message):
            self._lose_session()
            return error_response(request, exchange.request_id, _SESSION_LOST)
        outcome = status_outcome(response.status_code, response.headers, body)
        if isinstance(message, JSONRPCError) and outcome.trouble is not Trouble.BUSY:
            # Versions are negotiated with such errors, so they reach the SDK as they are.
            return json_response(request, response, body, message)
        return error_response(request, exchange.request_id, outcome)

    async def _read_body(self, response: httpx2.Response) -> bytes | TransportOutcome:
        if says_that_it_is_at_most(self._answer_limits.max_bytes, response.headers):
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
            # The usual case. As a plain answer it costs the SDK less time and memory than as an event.
            await stream.aclose()
            return json_response(request, response, first.data, stream.answer)
        return events_response(request, stream, response)

    def _event_stream(self, response: httpx2.Response, exchange: Exchange | None) -> EventStream:
        return EventStream(
            response,
            exchange,
            self._answer_limits,
            background=self._background,
            finish=self._finish,
        )

    def _lose_session(self) -> None:
        tell, self._on_session_lost = self._on_session_lost, None
        if tell is not None:
            self._background.start_soon(self._tell_of_loss, tell)

    async def _tell_of_loss(self, tell: Callable[[], None]) -> None:
        # Whoever hears of it will end the session, and with it the requests in flight. Most are about to be refused,
        # too, and can then be repeated safely: so they get their answers first.
        with anyio.move_on_after(_LAST_ANSWERS_S):
            self._all_answered = anyio.Event()
            if self._exchanges:
                await self._all_answered.wait()
        await anyio.sleep(_HAND_OVER_S)
        tell()

    # All else: it may neither end the session nor hold it up.

    async def _notify(self, request: httpx2.Request, content: bytes) -> httpx2.Response:
        cancelled = cancelled_id_of(content)
        if cancelled is not None and (exchange := self._exchanges.get(cancelled)) is not None:
            exchange.abandon()
        if b'"notifications/initialized"' in content:
            # Servers refuse requests that overtake this one.
            await self._post_notification(request)
        else:
            # Until we return, the SDK sends nothing else.
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
                _logger.warning("server %r: a notification was refused: HTTP %d", self._name, response.status_code)
            return
        _logger.warning("server %r: a notification was not received within %g s", self._name, _NOTIFY_S)

    async def _say_goodbye(self, request: httpx2.Request) -> httpx2.Response:
        with anyio.move_on_after(_GOODBYE_S):
            try:
                response = await self._send(request)
                await response.aclose()
                return httpx2.Response(response.status_code, content=b"", request=request)
            except httpx2.RequestError as error:
                _logger.debug("server %r: the session was not ended: %s", self._name, connection_outcome(error).detail)
        return httpx2.Response(405, request=request)

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """A stream for messages that answer no request, or the rest of one that broke.

        The SDK survives every failure of it and tries again by itself. Where it would give up on a request, that is
        answered here.
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
            # The request itself was received long ago.
            return self._give_up(request, exchange, replace(connection_outcome(error), delivered=True))
        if response.is_success and response.headers.get("content-type", "").lower().startswith(EVENTS):
            if exchange is not None:
                exchange.failed_resumptions = 0
            return events_response(request, self._event_stream(response, exchange), response)
        if exchange is None or not _is_last_try(exchange):
            return response
        await response.aclose()
        return self._give_up(request, exchange, broken(f"HTTP {response.status_code} instead of the answer", b""))

    def _give_up(self, request: httpx2.Request, exchange: Exchange, outcome: TransportOutcome) -> httpx2.Response:
        self._finish(exchange)
        content = error_event(error_for(exchange.request_id, outcome)).raw
        return httpx2.Response(200, headers={"content-type": EVENTS}, content=content, request=request)


def _is_last_try(exchange: Exchange) -> bool:
    exchange.failed_resumptions += 1
    return exchange.failed_resumptions == _RESUMPTIONS
