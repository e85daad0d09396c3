"""Tool calls out of the text of a turn, for models that write `<tool_call>{"name": …, "arguments": …}</tool_call>`.

Whatever the policy wrote gives a list of calls; one that cannot be used carries a `problem` in words that the policy
reads in the next turn. Nothing here raises, and the time is linear in the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from mcprl.records import ToolCall

__all__ = ["checked_call", "parse_tool_calls", "unusable_call"]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


def unusable_call(problem: str, name: str = "") -> ToolCall:
    """A call that failed before it began, with the reason for the policy to read."""
    return ToolCall(name=name.encode(errors="replace").decode(), arguments={}, problem=problem)


def checked_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """A call that can be sent and recorded. Decoders let NaN and halves of characters pass; JSON has neither."""
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return unusable_call("the call holds half of a surrogate pair, which is no character", name)
    except RecursionError:
        return unusable_call("the call is nested too deeply", name)
    except ValueError:
        return unusable_call("the call holds a number that is infinite or none, which JSON does not have", name)
    return ToolCall(name=name, arguments=arguments)


def parse_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn into its prose and its calls, in order.

    >>> parse_tool_calls('Let me see. <tool_call>{"name": "find_person", "arguments": {"name": "Ana"}}</tool_call>')
    ('Let me see.', (ToolCall(name='find_person', arguments={'name': 'Ana'}, problem=None),))
    """
    pieces: list[str] = []
    calls: list[ToolCall] = []
    place = 0  # positions, not ever shorter copies of the rest: a turn of many calls would cost their number squared
    while (opened := text.find(_OPEN, place)) >= 0:
        pieces.append(text[place:opened])
        body = opened + len(_OPEN)
        closed = text.find(_CLOSE, body)
        if closed < 0:
            calls.append(unusable_call(f"the call has no closing {_CLOSE}"))
            place = len(text)
            break
        calls.append(_parse_body(text[body:closed]))
        place = closed + len(_CLOSE)
    pieces.append(text[place:])
    return " ".join(piece.strip() for piece in pieces if piece.strip()), tuple(calls)


def _parse_body(body: str) -> ToolCall:
    try:
        data: object = json.loads(body)
    except json.JSONDecodeError as error:
        return unusable_call(f"the call is not valid JSON: {error.msg} at character {error.pos}")
    except (RecursionError, ValueError):
        # Python's decoder gives up on absurd nesting and on numbers of thousands of digits.
        return unusable_call("the call is not valid JSON: it is nested too deeply or holds a number too long")
    if not isinstance(data, dict):
        return unusable_call('the call must be a JSON object with "name" and "arguments"')
    fields = cast("dict[str, Any]", data)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        return unusable_call('the call has no "name"')
    arguments = fields.get("arguments", {})
    if not isinstance(arguments, dict):
        return unusable_call('"arguments" must be a JSON object', name)
    return checked_call(name, cast("dict[str, Any]", arguments))
