"""Tool calls out of the text of a turn, for models of the Llama 3 family.

There the whole turn is calls, `{"name": …, "parameters": …}`, or it is an answer: no tag tells them apart. A turn is
calls where it begins with `<|python_tag|>`, or with an object that has a "name", or with something that breaks off
after beginning like one. Any other text is an answer, JSON without a "name" too. Several calls are separated by `;` or
white space. Nothing here raises, and the time is linear in the text: each object is read once, and the first that
cannot be read takes the rest of the turn.
"""

from __future__ import annotations

import re
from typing import Any, cast

from mcprl.chat.parsing import MAX_CALLS, call_of, excerpt, read_value, skip_space, uncollected, unusable_call
from mcprl.chat.problems import Problem
from mcprl.records import ToolCall

__all__ = ["parse_llama_calls"]

_TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")
_BEGINS_LIKE_A_CALL = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"')
_BETWEEN_CALLS = re.compile(r"[\s;]*")


@uncollected
def parse_llama_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn into its prose and its calls: one of the two is empty.

    >>> parse_llama_calls('{"name": "find_person", "parameters": {"name": "Ana"}}')
    ('', (ToolCall(name='find_person', arguments={'name': 'Ana'}, problem=None),))
    """
    start = skip_space(text, 0)
    tagged = text.startswith(_TAG, start)
    start = skip_space(text, start + len(_TAG)) if tagged else start
    if not tagged and not text.startswith("{", start):
        return text.strip(), ()
    first = read_value(text, start)
    if not tagged and not _is_call(first, text, start):
        return text.strip(), ()
    return "", tuple(_read_calls(text, start, first))


def _is_call(first: tuple[object, int] | str, text: str, start: int) -> bool:
    if isinstance(first, str):
        return _BEGINS_LIKE_A_CALL.match(text, start) is not None
    return "name" in cast("dict[str, Any]", first[0])


def _read_calls(text: str, start: int, first: tuple[object, int] | str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    read = first
    while not isinstance(read, str):
        value, end = read
        calls.append(call_of(value, decoded_from=text[start:end], arguments_in=_ARGUMENTS))
        start = cast("re.Match[str]", _BETWEEN_CALLS.match(text, end)).end()
        if start == len(text):
            return calls
        if not text.startswith("{", start):
            problem = Problem.TEXT_AFTER_JSON.say(found=excerpt(text, start), allowed="another call")
            return [*calls[:-1], unusable_call(problem, calls[-1].name)]
        too_many = len(calls) == MAX_CALLS
        read = Problem.TOO_MANY.say(limit=MAX_CALLS) if too_many else read_value(text, start)
    return [*calls, unusable_call(read)]
