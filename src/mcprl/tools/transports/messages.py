"""Code for both transports: errors that replace answers, and parsing of JSON-RPC that is cut, broken or too long.

Everything takes linear time and bounded memory: only the beginning and the end of a line above the limit are kept.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, cast

from mcp import MCPError
from mcp_types import ErrorData, JSONRPCError
from pydantic_core import from_json

# Parsed objects take up to thirty times the memory of their JSON, so parse more than this only if the result's text has
# started by then. A character may take six bytes in JSON.
_FIRST_LOOK_BYTES = 64 * 1024
_BYTES_PER_CHARACTER = 6

_PLACE = re.compile(r"at line (\d+) column (\d+)$")


def beginning_of(raw: bytes, limit: int) -> str:
    """Return the first `limit` characters of the text in a JSON-RPC result, or of the bytes if they contain no such
    text. `raw` may be cut anywhere.

    It never fails: invalid UTF-8 becomes U+FFFD, and anything that is not JSON is returned as it is.

        beginning_of(b'{"id":1,"result":{"content":[{"type":"text","text":"Once upon a ti', 9) == "Once upon"
    """
    text = _text_in(raw[:_FIRST_LOOK_BYTES])
    if 0 < len(text) < limit and len(raw) > _FIRST_LOOK_BYTES:
        text = _text_in(raw[: _FIRST_LOOK_BYTES + limit * _BYTES_PER_CHARACTER])
    return (text or _decoded(raw[: limit * _BYTES_PER_CHARACTER]))[:limit]


def _text_in(raw: bytes) -> str:
    return "\n".join(_text_parts(_parse(_decoded(raw).removeprefix("\ufeff").encode())))


def _decoded(raw: bytes) -> str:
    # Leaves out an incomplete last character.
    return codecs.utf_8_decode(raw, "replace", False)[0]


def _parse(data: bytes) -> Any:
    """Parse the JSON up to its end or its first error. Return None if nothing can be parsed."""
    try:
        return from_json(data, allow_partial="trailing-strings")
    except ValueError as error:
        before = data[: _offset(data, str(error))]
    try:
        return from_json(before, allow_partial="trailing-strings")
    except ValueError:
        return None


def _offset(data: bytes, message: str) -> int:
    """Return the byte offset of a parser error, whose message gives the line and column."""
    place = _PLACE.search(message)
    if place is None:
        return 0
    line, column = int(place[1]), int(place[2])
    start = 0
    for _ in range(line - 1):
        start = data.index(b"\n", start) + 1
    return max(start + column - 1, 0)


def _text_parts(message: Any) -> list[str]:
    content = _member(_member(message, "result"), "content")
    if not isinstance(content, list):
        return []
    parts = cast("list[Any]", content)
    texts = [_member(part, "text") or _member(_member(part, "resource"), "text") for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _member(value: Any, key: str) -> Any:
    return cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None


_CODE = -32090
_PROOF = secrets.token_hex(8)


class Trouble(StrEnum):
    """Why there is no regular answer."""

    UNREACHABLE = "unreachable"
    """The connection failed. `delivered` says whether the server may have received the request."""
    BUSY = "busy"
    """The server or a proxy asked the client to retry later."""
    BROKEN = "broken"
    """The response is not an answer: it has an HTTP error status, or is not JSON-RPC."""
    REFUSED_FOR_SIZE = "refused_for_size"
    """The server rejected the request because it is too long."""
    TOO_LARGE = "too_large"
    """The result is too long or too deeply nested. `text` is its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOutcome:
    """What a transport reports instead of an answer.

    TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 429", delivered=False, retry_after_s=2.0)
    """

    trouble: Trouble
    detail: str
    delivered: bool = True
    retry_after_s: float | None = None
    text: str = ""


def error_for(request_id: str | int, outcome: TransportOutcome) -> JSONRPCError:
    """Convert an outcome to a JSON-RPC error for the session."""
    data = ErrorData(code=_CODE, message=outcome.detail, data={"proof": _PROOF, **asdict(outcome)})
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=data)


def outcome_of(error: MCPError) -> TransportOutcome | None:
    """Return the outcome of an error that a transport created; None if the server sent the error."""
    data: Any = error.data
    if error.code != _CODE or not isinstance(data, dict):
        return None
    fields = dict(cast("dict[str, Any]", data))
    if fields.pop("proof", None) != _PROOF:
        return None
    fields["trouble"] = Trouble(fields["trouble"])
    return TransportOutcome(**fields)


_TAIL_BYTES = 512
_HEAD_BYTES = 4096

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*")
# Includes the comma, because a number at the end of the data may be incomplete.
_SCALAR = re.compile(rb"(" + _STRING + rb"|-?[0-9][0-9.eE+-]*|true|false|null)\s*,")
# Matches if the object's last member is its id, or its id followed by its version. In valid JSON nothing else looks
# like this: a quote within a string is escaped, and an inner object would have one more brace.
_ID_AT_END = re.compile(rb'[,{]\s*"id"\s*:\s*(-?[0-9]+|' + _STRING + rb')\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class CutLine:
    """Takes the place of a line as soon as it exceeds the size limit. `head` is the line's beginning.

    CutLine(b'{"jsonrpc":"2.0","id":5,"result":{"content":[{"type":"text","text":"xxxxxxxxxxxx')
    """

    head: bytes


@dataclass(frozen=True, slots=True)
class CutLineEnd:
    """Follows a CutLine when that line has ended. `tail` holds the line's last bytes; those in between are dropped.

    CutLineEnd(b'xxxxxxxxxxxx"}]},"jsonrpc":"2.0","id":5}')
    """

    tail: bytes


class LineSplitter:
    """Splits chunks of bytes into lines. A line above `max_bytes` is replaced by a CutLine and a CutLineEnd.

    splitter = LineSplitter(max_bytes=4)
    list(splitter.feed(b"one\\ntwo")) == [b"one"]
    list(splitter.feed(b"\\nthree\\n")) == [b"two", CutLine(b"thre"), CutLineEnd(b"three")]
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._tail = b""
        self._is_cutting = False

    def feed(self, chunk: bytes) -> Iterator[bytes | CutLine | CutLineEnd]:
        """Yield the lines that end in this chunk, without line ends. See CutLine for lines that are too long."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            if self._line or self._is_cutting or end - start > self._max_bytes:
                yield from self._add(chunk[start:end])
                yield self._end_line()
            else:
                yield chunk[start:end]
            start = end + 1
        if start < len(chunk):
            yield from self._add(chunk[start:] if start else chunk)

    def _add(self, part: bytes) -> Iterator[CutLine]:
        if self._is_cutting:
            self._tail = (self._tail + part[-_TAIL_BYTES:])[-_TAIL_BYTES:]
            return
        self._line += part
        if len(self._line) > self._max_bytes:
            line = self._take()
            self._is_cutting = True
            self._tail = line[-_TAIL_BYTES:]
            yield CutLine(line[: self._max_bytes])

    def _end_line(self) -> bytes | CutLineEnd:
        if not self._is_cutting:
            return self._take()
        tail = self._tail
        self._is_cutting, self._tail = False, b""
        return CutLineEnd(tail)

    def _take(self) -> bytes:
        line = bytes(self._line)
        # A new buffer, because the old one would keep the memory of the longest line.
        self._line = bytearray()
        return line


def lenient_json(data: bytes) -> Any:
    """Parse JSON; invalid UTF-8 and unpaired surrogates become U+FFFD.

    JavaScript programs write an unpaired surrogate if they cut a string in the middle of an emoji. Raises ValueError.
    """
    try:
        return from_json(data)
    except ValueError:
        text = data.decode(errors="replace")
        if not _HALF_SURROGATE.search(data):
            return from_json(text)
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False)
    except RecursionError:
        raise ValueError("recursion limit exceeded") from None
    return from_json(whole.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def leading_members(line: bytes) -> dict[str, str | int | None]:
    """Return the first members of a JSON object, up to and including the first value that is not a complete scalar.

    In a line that is cut or broken, only these are certain: later parts may be text that looks like JSON. A value that
    is not parsed is returned as None.

        leading_members(b'{"jsonrpc":"2.0","id":5,"result":{"id":7') == {"jsonrpc": "2.0", "id": 5, "result": None}
    """
    head = line[:_HEAD_BYTES].lstrip()
    members: dict[str, str | int | None] = {}
    place = 1
    while head.startswith(b"{") and (key := _KEY.match(head, place)):
        name = _value(key[1])
        scalar = _SCALAR.match(head, key.end())
        members[str(name)] = None if scalar is None else _value(scalar[1])
        if scalar is None:
            break
        place = scalar.end()
    return members


def id_at_end(tail: bytes) -> str | int | None:
    """Return the id of a message if it is the last member, as the TypeScript SDK writes it.

    id_at_end(b'…"id":7}]}}]},"jsonrpc":"2.0","id":5}') == 5
    """
    found = _ID_AT_END.search(tail)
    return None if found is None else _value(found[1])


def _value(raw: bytes) -> str | int | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None
