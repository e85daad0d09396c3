"""The readable beginning of an answer that was cut, because it is longer than what may be read."""

from __future__ import annotations

import codecs
import re
from typing import Any, cast

from pydantic_core import from_json

__all__ = ["beginning_of"]

# The parser makes objects of up to thirty times the size of what it reads, so more than this is read only where the
# text has begun by then. One of its characters may take six bytes in JSON.
_FIRST_LOOK_BYTES = 64 * 1024
_BYTES_PER_CHARACTER = 6

_PLACE = re.compile(r"at line (\d+) column (\d+)$")


def beginning_of(raw: bytes, limit: int) -> str:
    """The first `limit` characters of the text parts in a JSON-RPC result that is cut anywhere, or else of the bytes.

    It never fails, whatever the bytes: what is no UTF-8 is shown as U+FFFD, what is no JSON is shown as it is.

        beginning_of(b'{"id":1,"result":{"content":[{"type":"text","text":"Once upon a ti', 9) == "Once upon"
    """
    text = _text_in(raw[:_FIRST_LOOK_BYTES])
    if 0 < len(text) < limit and len(raw) > _FIRST_LOOK_BYTES:
        text = _text_in(raw[: _FIRST_LOOK_BYTES + limit * _BYTES_PER_CHARACTER])
    return (text or _decoded(raw[: limit * _BYTES_PER_CHARACTER]))[:limit]


def _text_in(raw: bytes) -> str:
    return "\n".join(_text_parts(_parse(_decoded(raw).removeprefix("\ufeff").encode())))


def _decoded(raw: bytes) -> str:
    # A character whose last bytes are missing is left out.
    return codecs.utf_8_decode(raw, "replace", False)[0]


def _parse(data: bytes) -> Any:
    """What can be read of the JSON: all of it up to its end, or up to the first mistake in it."""
    try:
        return from_json(data, allow_partial="trailing-strings")
    except ValueError as error:
        before = data[: _offset(data, str(error))]
    try:
        return from_json(before, allow_partial="trailing-strings")
    except ValueError:
        return None


def _offset(data: bytes, message: str) -> int:
    """How many bytes stand before the mistake that the parser names by line and column."""
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
