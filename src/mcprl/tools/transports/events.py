"""Server-sent events cut out of bytes as they arrive, none of them larger than allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["EventSplitter", "ServerEvent"]

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its fields, and the bytes that say the same.

    ServerEvent(name="message", data=b'{"jsonrpc":"2.0"}', id="7", raw=b'id: 7\\ndata: {"jsonrpc":"2.0"}\\n\\n')
    """

    name: str
    data: bytes
    id: str
    raw: bytes


class EventSplitter:
    """Takes bytes in pieces of any length and gives whole events, in time linear in their length.

    Lines end with a line feed, a carriage return or both. Comments are dropped. What no empty line ended is no event.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._unfinished = bytearray()
        self._ended_with_return = False
        self._is_first_line = True

    @property
    def is_too_large(self) -> bool:
        """Whether the event that is arriving exceeds the limit. Nothing more can be fed then."""
        return self._num_bytes + len(self._unfinished) > self._max_bytes

    @property
    def beginning(self) -> bytes:
        """The data of the event that is arriving, as far as it has come."""
        return _data([*self._lines, bytes(self._unfinished)])

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that this piece completes. Stops where one becomes too large."""
        if self._ended_with_return and piece.startswith(b"\n"):
            piece = piece[1:]
            self._ended_with_return = False
        events: list[ServerEvent] = []
        for line in piece.splitlines(keepends=True):
            self._ended_with_return = line.endswith(b"\r")
            if not line.endswith((b"\n", b"\r")):
                self._unfinished += line
            elif (event := self._end_line(line.rstrip(b"\r\n"))) is not None:
                events.append(event)
            if self.is_too_large:
                break
        return events

    def _end_line(self, last: bytes) -> ServerEvent | None:
        line = bytes(self._unfinished) + last if self._unfinished else last
        self._unfinished.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.startswith(b":"):
            return None
        if line:
            self._lines.append(line)
            self._num_bytes += len(line)
            return None
        lines, self._lines, self._num_bytes = self._lines, [], 0
        return _event(lines) if lines else None


def _event(lines: list[bytes]) -> ServerEvent:
    name = identity = ""
    for line in lines:
        field, value = _field(line)
        if field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            identity = value.decode(errors="replace")
    return ServerEvent(name or "message", _data(lines), identity, b"\n".join(lines) + b"\n\n")


def _data(lines: Iterable[bytes]) -> bytes:
    return b"\n".join(value for field, value in map(_field, lines) if field == b"data")


def _field(line: bytes) -> tuple[bytes, bytes]:
    field, _, value = line.partition(b":")
    return field, value.removeprefix(b" ")
