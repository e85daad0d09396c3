"""The responses that the SDK is given: what the server answered, or an error of ours in its place."""

from __future__ import annotations

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID
from mcp_types import JSONRPCError, JSONRPCResponse

from mcprl.tools.transports.wire import TransportOutcome, error_for

__all__ = ["EVENTS", "error_response", "events_response", "json_response", "says_that_it_is_at_most"]

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
