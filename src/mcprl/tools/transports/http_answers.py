"""What an HTTP response means for the JSON-RPC request it answers, decided from its status, headers and bytes alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
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

from mcprl.redact import SECRETS
from mcprl.retry_after import retry_after_s
from mcprl.tools.transports.lines import lenient_json
from mcprl.tools.transports.partial import beginning_of
from mcprl.tools.transports.wire import TransportOutcome, Trouble

__all__ = [
    "AnswerLimits",
    "answers",
    "broken",
    "cancelled_id_of",
    "connection_outcome",
    "read_message",
    "read_repaired",
    "refuses_session",
    "request_id_of",
    "status_outcome",
    "too_large",
]

_EXCERPT_CHARACTERS = 300
# Cut only after secrets are taken out, so that none is cut in two and not recognised.
_REDACTED_BYTES = 8192

# What a request looks like as the SDK writes it. Anything else is parsed.
_REQUEST_HEAD = re.compile(rb'\{"jsonrpc":"2\.0","id":(\d+),"method":')

# Nothing of a request has been sent when these are raised. All others leave open whether the server has it.
_NOTHING_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """How much of an answer is read, and how much of one that exceeds it is kept as text.

    AnswerLimits(max_bytes=16_777_216, text_characters=69_632)
    """

    max_bytes: int
    text_characters: int


def request_id_of(content: bytes) -> str | int | None:
    """The id of the JSON-RPC request in a body; None where it is a notification or a response."""
    head = _REQUEST_HEAD.match(content)
    if head is not None:
        return int(head[1])
    message: dict[str, Any] = from_json(content)
    return message.get("id") if "method" in message else None


def cancelled_id_of(content: bytes) -> str | int | None:
    """The id of the request that the notification in a body takes back; None where it is another notification."""
    message: dict[str, Any] = from_json(content)
    return message["params"]["requestId"] if message.get("method") == "notifications/cancelled" else None


def read_message(
    body: bytes, limits: AnswerLimits
) -> JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError | TransportOutcome:
    """The JSON-RPC message that the SDK will read from these bytes, or what is wrong with them."""
    try:
        return jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValidationError as error:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
    if "recursion limit" in why:
        text = beginning_of(body, limits.text_characters)
        return TransportOutcome(trouble=Trouble.TOO_LARGE, detail="the answer is nested too deeply", text=text)
    return broken("the answer is no JSON-RPC message", body)


def read_repaired(
    body: bytes, limits: AnswerLimits
) -> tuple[bytes, JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError | TransportOutcome]:
    """Like `read_message`, with the bytes that the SDK is to read: bad UTF-8 and half surrogates become U+FFFD."""
    message = read_message(body, limits)
    if not isinstance(message, TransportOutcome) or message.trouble is not Trouble.BROKEN:
        return body, message
    try:
        mended = to_json(lenient_json(body))
    except ValueError:
        return body, message
    return mended, read_message(mended, limits)


def answers(message: object, request_id: str | int) -> bool:
    """Whether a message is the answer to this request. An error may lack an id that the server could not read."""
    match message:
        case JSONRPCResponse(id=answered) | JSONRPCError(id=answered):
            # Some servers answer the number 7 with the text "7", and the SDK lets them.
            return answered is None or str(answered) == str(request_id)
        case _:
            return False


def connection_outcome(error: httpx2.RequestError) -> TransportOutcome:
    """A connection that failed. Only where nothing was sent is it certain that the call was not made."""
    text = _one_line(str(error))
    return TransportOutcome(
        trouble=Trouble.BROKEN if isinstance(error, httpx2.DecodingError) else Trouble.UNREACHABLE,
        detail=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        delivered=not isinstance(error, _NOTHING_SENT),
    )


def too_large(beginning: bytes, limits: AnswerLimits) -> TransportOutcome:
    """An answer of which no more is read."""
    return TransportOutcome(
        trouble=Trouble.TOO_LARGE,
        detail=f"the answer is larger than {limits.max_bytes} bytes",
        text=beginning_of(beginning, limits.text_characters),
    )


def broken(what: str, body: bytes) -> TransportOutcome:
    """Bytes that are no answer."""
    excerpt = _one_line(body[:_REDACTED_BYTES].decode(errors="replace"))
    return TransportOutcome(trouble=Trouble.BROKEN, detail=f"{what}: {excerpt}" if excerpt else what)


def status_outcome(status: int, headers: Mapping[str, str], body: bytes) -> TransportOutcome:
    """What a status says when the body holds no JSON-RPC message that could say more."""
    wait_s = retry_after_s(headers)
    if status == 413:
        return TransportOutcome(trouble=Trouble.REFUSED_FOR_SIZE, detail="HTTP 413", delivered=False)
    if status == 429:
        # The status says that the request was turned away before anything was done with it.
        return TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 429", delivered=False, retry_after_s=wait_s)
    if status == 503 and wait_s is not None:
        return TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 503", retry_after_s=wait_s)
    if status in {401, 403}:
        return broken(f"HTTP {status}, the server refused the key in the headers, or wants one", b"")
    if status < 300 and headers.get("content-type"):
        return broken(f"HTTP {status} with content of type {_one_line(headers['content-type'])}, no answer", body)
    outcome = broken(f"HTTP {status} without an answer" if status < 300 else f"HTTP {status}", body)
    return TransportOutcome(trouble=Trouble.BROKEN, detail=outcome.detail, retry_after_s=wait_s)


def refuses_session(status: int, message: object) -> bool:
    """Whether this answer to a request that named its session says that there is no such session any more.

    404 says so by the protocol's rules, unless the body says that it is the method which was not found. Servers made
    after a widespread example answer 400 and an error without an id whose text names the session.
    """
    if not isinstance(message, JSONRPCError):
        return status == 404
    if status == 404:
        return message.error.code != METHOD_NOT_FOUND
    return status == 400 and message.id is None and "session" in message.error.message.lower()


def _one_line(text: str) -> str:
    """A text of the server for a sentence of ours: without secrets, control characters and length."""
    words = SECRETS.redact(text).split()
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(words))
    return line if len(line) <= _EXCERPT_CHARACTERS else line[:_EXCERPT_CHARACTERS] + "…"
