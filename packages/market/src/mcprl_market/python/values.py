"""JSON that a policy or its code wrote, read so that the result can always be sent on."""

from __future__ import annotations

import json
import re
from typing import Any

from mcprl_market.python.worker import MAX_DEPTH

__all__ = ["json_value", "read_json"]


# Without a loop over the values: a report may have half a million, and other calls wait meanwhile.
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ROUND = bytes.maketrans(b"[]{}", b"()()")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(text: str | bytes) -> Any:
    """The value, with ? for each half of a surrogate pair: JSON's escapes can write one alone, UTF-8 cannot.

    Raises ValueError if the text is not JSON, or is nested more than MAX_DEPTH levels deep.

    >>> read_json('{"close": [1, 2.5], "name": "\\\\ud800"}')
    {'close': [1, 2.5], 'name': '?'}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _sendable(value)


def json_value(data: Any) -> Any:
    """The value of an argument: policies send JSON as it is, or as a text.

    Raises ValueError if a value is nested too deep; a text like that stays a text.

    >>> json_value('{"pe": 55.79}'), json_value([1, 2]), json_value("plain text")
    ({'pe': 55.79}, [1, 2], 'plain text')
    """
    if not isinstance(data, str):
        return _sendable(data)
    try:
        return read_json(data)
    except ValueError:
        return data


def _sendable(value: Any) -> Any:
    try:
        written = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    brackets = _TEXTS.sub(b"", written).translate(_ROUND, _OTHERS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"()", b"")  # the innermost of all that are left
    if brackets:
        raise ValueError(_TOO_DEEP)
    return json.loads(written)
