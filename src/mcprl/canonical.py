"""One text for each JSON value: what is equal is written alike, what differs is written differently."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["canonical_json", "is_unicode"]


def canonical_json(value: object) -> str:
    r"""The value as ASCII JSON with sorted keys and no spaces; a whole number has one form, as 1 and 1.0 are equal.

    Texts are compared as they are: two Unicode forms of one letter stay two texts, because a tool may tell them apart.
    Raises ValueError for what JSON cannot hold: infinities, keys that are no texts, other types, endless nesting.

    >>> canonical_json({"limit": 2.0, "symbol": "AAPL"}) == canonical_json({"symbol": "AAPL", "limit": 2})
    True
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply for JSON") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, object]", value)
        for key in entries:
            if not isinstance(key, str):
                raise ValueError(f"a key that is no text: {key!r}")
        return {key: _plain(entry) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in cast("list[object]", value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__}, which is no JSON value")


def is_unicode(text: str) -> bool:
    """Whether a text can be sent: half of a surrogate pair, which JSON can spell, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
