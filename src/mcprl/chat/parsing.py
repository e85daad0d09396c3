"""Tool calls out of the text of a turn, for models that write `<tool_call>{"name": …, "arguments": …}</tool_call>`.

Whatever the policy wrote gives a list of calls; one that cannot be used carries a `problem` in words that the policy
reads in the next turn. Nothing here raises, and the time is linear in the text.
"""

from __future__ import annotations

import gc
import json
import re
from array import array
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, cast

from mcprl.chat.problems import Problem
from mcprl.records import ToolCall

__all__ = [
    "CALL_OPENING",
    "MAX_CALLS",
    "call_of",
    "checked_call",
    "excerpt",
    "parse_tool_calls",
    "read_value",
    "skip_space",
    "unusable_call",
]

CALL_OPENING = "<tool_call>"
_CALL_CLOSING = "</tool_call>"
_ARGUMENTS = ("arguments",)

# A policy that has fallen into a loop writes calls by the thousand, and each would be carried out and answered.
MAX_CALLS = 128

# Far more than any tool's arguments need, and far less than the decoders, checkers and encoders that a call passes
# through can bear: where theirs ends depends on who calls them.
_MAX_NESTING = 100
_EXCERPT = 24
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = bytes.maketrans(b"[{]}", bytes([1, 1, 255, 255]))  # 255 is −1 in an array of signed bytes
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)


def read_value(text: str, start: int) -> tuple[object, int] | str:
    """The JSON value at `start` and where it ends, or the problem with it."""
    # What is decoded has no cycles, and the collector, woken by every 700 lists, would take several times as long as
    # the decoder: 256 KB of brackets are 130,000 lists.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _DECODER.raw_decode(text, skip_space(text, start))
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")
        where = f"at character {error.pos - start}, before {excerpt(text, error.pos)}"
        return Problem.NOT_JSON.say(why=f"{reason} {where}")
    except RecursionError:
        return Problem.TOO_DEEP.say(limit=_MAX_NESTING)
    except ValueError:
        return Problem.NUMBER_TOO_LONG.say()
    finally:
        if collecting:
            gc.enable()


def excerpt(text: str, place: int) -> str:
    """The first characters from `place` on, for a sentence."""
    return repr(text[place : place + _EXCERPT]) if place < len(text) else "the end"


def skip_space(text: str, place: int) -> int:
    """The first place from `place` on that is no white space."""
    return cast("re.Match[str]", _SPACE.match(text, place)).end()


def unusable_call(problem: str, name: str = "") -> ToolCall:
    """A call that failed before it began, with the reason for the policy to read."""
    return ToolCall(name=name.encode(errors="replace").decode(), arguments={}, problem=problem)


def checked_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """A call that can be sent and recorded. Decoders let NaN and halves of characters pass; JSON has neither."""
    try:
        written = _ENCODER.encode([name, arguments])
        written.encode()
    except UnicodeEncodeError:
        return unusable_call(Problem.HALF_CHARACTER.say(), name)
    except RecursionError:
        return unusable_call(Problem.TOO_DEEP.say(limit=_MAX_NESTING), name)
    except ValueError:
        return unusable_call(Problem.NOT_FINITE.say(), name)
    # Few calls hold as many brackets as would be too deep: only those are looked through. One level is not theirs.
    if written.count("[") + written.count("{") > _MAX_NESTING and _nesting(written) - 1 > _MAX_NESTING:
        return unusable_call(Problem.TOO_DEEP.say(limit=_MAX_NESTING), name)
    return ToolCall(name=name, arguments=arguments)


def call_of(data: object, *, arguments_in: tuple[str, ...]) -> ToolCall:
    """The call that a JSON value is, with its arguments in one of the fields `arguments_in`."""
    if not isinstance(data, dict):
        return unusable_call(Problem.NOT_AN_OBJECT.say(arguments=arguments_in[0]))
    fields = cast("dict[str, Any]", data)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        return unusable_call(Problem.NO_NAME.say(where=', which belongs in "name"'))
    given = [field for field in arguments_in if field in fields]
    if len(given) > 1 or (not given and len(fields) > 1):
        found = " and ".join(repr(field[:_EXCERPT]) for field in given or [f for f in fields if f != "name"][:1])
        return unusable_call(Problem.MISPLACED_ARGUMENTS.say(arguments=arguments_in[0], found=found), name)
    arguments: object = fields[given[0]] if given else {}
    if not isinstance(arguments, dict):
        return unusable_call(Problem.ARGUMENTS_NOT_AN_OBJECT.say(where=f', in "{given[0]}"'), name)
    return checked_call(name, cast("dict[str, Any]", arguments))


def parse_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn into its prose and its calls, in order.

    >>> parse_tool_calls('Let me see. <tool_call>{"name": "find_person", "arguments": {"name": "Ana"}}</tool_call>')
    ('Let me see.', (ToolCall(name='find_person', arguments={'name': 'Ana'}, problem=None),))
    """
    # Why this is linear, though the JSON of a broken call may be read far past the call's end and over later calls.
    # Take two readings that are both under way at some place, the later one begun at an opening tag that the earlier
    # one passed. A tag is passed only inside a string, and that is where the earlier one was while the later one began
    # outside of any. From there on each quote lets one into a string and the other out of it (before an escaped quote
    # stands a backslash, which ends the reading that is outside). So at the next opening tag one of the two is outside
    # of strings, and ends there. No place is read more than twice. (An error counts the lines before it, all of them:
    # that is quick, and there are no more errors than MAX_CALLS.)
    pieces: list[str] = []
    calls: list[ToolCall] = []
    place = 0
    while (opened := text.find(CALL_OPENING, place)) >= 0:
        pieces.append(text[place:opened])
        if len(calls) == MAX_CALLS:
            calls.append(unusable_call(Problem.TOO_MANY.say(limit=MAX_CALLS)))
            place = len(text)
            break
        call, place = _read_tagged_call(text, opened + len(CALL_OPENING))
        calls.append(call)
    pieces.append(text[place:])
    return " ".join(piece.strip() for piece in pieces if piece.strip()), tuple(calls)


def _read_tagged_call(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose opening tag ends at `start`, and the place after its closing tag."""
    read, name = read_value(text, start), ""
    if not isinstance(read, str):
        value, end = read
        end = skip_space(text, end)
        call = call_of(value, arguments_in=_ARGUMENTS)
        if text.startswith(_CALL_CLOSING, end):
            return call, end + len(_CALL_CLOSING)
        read = Problem.TEXT_AFTER_JSON.say(found=excerpt(text, end), allowed=_CALL_CLOSING)
        start, name = end, call.name
    closed = text.find(_CALL_CLOSING, start)
    if closed < 0:
        return unusable_call(Problem.UNCLOSED.say(closing=_CALL_CLOSING), name), len(text)
    return unusable_call(read, name), closed + len(_CALL_CLOSING)


def _nesting(written: str) -> int:
    """How many levels of lists and objects there are in a JSON text. All of it runs in C, whatever the text."""
    brackets = _STRING.sub("", written).encode().translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(array("b", brackets)), default=0)
