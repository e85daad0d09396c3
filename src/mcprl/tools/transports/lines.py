"""The lines that a server writes, cut from its bytes, what they hold, and the id of one that cannot be read as a whole.

Linear in the number of bytes, and bounded: of a line beyond the limit only its beginning and its very end are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

__all__ = ["CutLine", "CutLineEnd", "LineSplitter", "id_at_end", "leading_members", "lenient_json"]

_TAIL_BYTES = 512
_HEAD_BYTES = 4096

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_KEY = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*")
# With what follows it: a number at the end of what was read may go on.
_SCALAR = re.compile(rb"(" + _STRING + rb"|-?[0-9][0-9.eE+-]*|true|false|null)\s*,")
# The object's last member is its id, or its id and then its version. In valid JSON nothing else can look like this: a
# quote within a string stands behind a backslash, and an inner object would have one more brace.
_ID_AT_END = re.compile(rb'[,{]\s*"id"\s*:\s*(-?[0-9]+|' + _STRING + rb')\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_HALF_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class CutLine:
    """A line has just exceeded the limit; `head` is its beginning. More of it follows and is dropped.

    CutLine(b'{"jsonrpc":"2.0","id":5,"result":{"content":[{"type":"text","text":"xxxxxxxxxxxx')
    """

    head: bytes


@dataclass(frozen=True, slots=True)
class CutLineEnd:
    """The line that was cut has ended; `tail` is its last bytes.

    CutLineEnd(b'xxxxxxxxxxxx"}]},"jsonrpc":"2.0","id":5}')
    """

    tail: bytes


class LineSplitter:
    """Cuts chunks of bytes into lines.

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
        """The lines that end in this chunk, without their ends, and what happens to one that is too long."""
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
        # A new one: the old would keep the memory of the longest line there was.
        self._line = bytearray()
        return line


def lenient_json(data: bytes) -> Any:
    """The value that JSON holds. Bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD.

    JavaScript writes such a half where a program cuts a text in the middle of an emoji. Raises ValueError.
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
    """The first members of an object, up to and with the first whose value is not a text or a number.

    Only these are certain in a line that is cut or broken: whatever comes later may be text that looks like JSON. A
    value that is not read is None.

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
    """The id of a message whose last member it is, as the TypeScript SDK writes it.

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
