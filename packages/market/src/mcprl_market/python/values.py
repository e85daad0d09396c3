"""Parses JSON that the policy or its code wrote, so that the result can always be serialized again."""

from __future__ import annotations

import json
import re
from typing import Any

from mcprl_market.python.worker import MAX_DEPTH

# Measured without a loop over the values, because a report may have half a million, and other calls would wait.
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ROUND = bytes.maketrans(b"[]{}", b"()()")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Lone surrogates become "?": JSON's escapes can express them, UTF-8 cannot.

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
    """Return the value of an argument. Policies send JSON either as a value or as a string.

    Raises ValueError if a value is nested too deeply. A string that is nested too deeply stays a string.

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
        brackets = brackets.replace(b"()", b"")  # removes the innermost pairs that are left
    if brackets:
        raise ValueError(_TOO_DEEP)
    return json.loads(written)
