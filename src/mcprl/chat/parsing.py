"""Tool calls out of the text of a turn, for models that write `<tool_call>{"name": …, "arguments": …}</tool_call>`.

Whatever the policy wrote gives a list of calls; one that cannot be used carries a `problem` in words that the policy
reads in the next turn. Nothing here raises, and the time is linear in the text.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import accumulate
from typing import Any, ParamSpec, TypeVar, cast

from mcprl.canonical import is_unicode
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
    "uncollected",
    "unusable_call",
]

_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")

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
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # what gives back nothing needs no memory of where it was
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)


def uncollected(read: Callable[_Given, _Read]) -> Callable[_Given, _Read]:
    """The same reading while the garbage collector rests.

    What is decoded has no cycles, and the collector, woken by every 700 lists, would take several times as long as the
    decoder: 256 KB of brackets are 130,000 lists. It rests until the turn is read, and not only until it is decoded:
    the next object made with it awake, an exception of a generator that ends too, has it look through them all.
    """

    @wraps(read)
    def reading(*args: _Given.args, **kwargs: _Given.kwargs) -> _Read:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return read(*args, **kwargs)
        finally:
            if collecting:
                gc.enable()

    return reading


@uncollected
def read_value(text: str, start: int) -> tuple[object, int] | str:
    """The JSON value at `start` and where it ends, or the problem with it."""
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


def excerpt(text: str, place: int) -> str:
    """The first characters from `place` on, for a sentence."""
    return repr(text[place : place + _EXCERPT]) if place < len(text) else "the end"


def skip_space(text: str, place: int) -> int:
    """The first place from `place` on that is no white space."""
    return cast("re.Match[str]", _SPACE.match(text, place)).end()


def unusable_call(problem: str, name: str = "") -> ToolCall:
    """A call that failed before it began, with the reason for the policy to read."""
    return ToolCall(name=name.encode(errors="replace").decode(), arguments={}, problem=problem)


def checked_call(name: str, arguments: Mapping[str, Any], *, decoded_from: str | None = None) -> ToolCall:
    """A call that can be sent and recorded. Decoders let NaN and halves of characters pass; JSON has neither.

    Where name and arguments were decoded from one text, most such texts tell without a look at the values.
    """
    if decoded_from is not None and _is_harmless(decoded_from):
        return ToolCall(name=name, arguments=arguments)
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


def call_of(data: object, *, decoded_from: str, arguments_in: tuple[str, ...]) -> ToolCall:
    """The call that a JSON value, decoded from a text, is, with its arguments in one of the fields `arguments_in`."""
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
    return checked_call(name, cast("dict[str, Any]", arguments), decoded_from=decoded_from)


@uncollected
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
    # that is quick, there are no more errors than MAX_CALLS, and what is done with is cut off now and then.)
    pieces: list[str] = []
    calls: list[ToolCall] = []
    place = 0
    while (opened := text.find(CALL_OPENING, place)) >= 0:
        pieces.append(text[place:opened])
        if opened > len(text) // 8:
            text, opened = text[opened:], 0
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
        call = call_of(value, decoded_from=text[start:end], arguments_in=_ARGUMENTS)
        end = skip_space(text, end)
        if text.startswith(_CALL_CLOSING, end):
            return call, end + len(_CALL_CLOSING)
        read = Problem.TEXT_AFTER_JSON.say(found=excerpt(text, end), allowed=_CALL_CLOSING)
        start, name = end, call.name
    closed = text.find(_CALL_CLOSING, start)
    if closed < 0:
        return unusable_call(Problem.UNCLOSED.say(closing=_CALL_CLOSING), name), len(text)
    return unusable_call(read, name), closed + len(_CALL_CLOSING)


def _is_harmless(text: str) -> bool:
    """Whether a text that could be decoded holds no half of a character, no infinite number and no great depth.

    That is said only of texts where it is easily seen: those without fractions, exponents and escaped surrogates.
    """
    if "\\ud" in text or "\\uD" in text or not is_unicode(text):
        return False
    bare = _STRING.sub("", text)
    if any(sign in bare for sign in ".EIN") or bare.count("e") != bare.count("true") + bare.count("false"):
        return False
    # One level is the call's own.
    return bare.count("[") + bare.count("{") <= _MAX_NESTING or _nesting(bare) - 1 <= _MAX_NESTING


def _nesting(written: str) -> int:
    """How many levels of lists and objects there are in a JSON text. All of it runs in C, whatever the text."""
    brackets = _STRING.sub("", written).encode().translate(_ONE_KIND, _NO_BRACKETS)
    # Without the innermost pairs there is one level less. Where these are many, taking them out leaves a text that is
    # shorter by an eighth at least, so all these texts together are no longer than eight times the first.
    levels = 0
    while brackets.count(b"[]") > len(brackets) // 16:
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    # Where they are few, each is looked at: before it stand closing brackets, back to the pair before, and then opening
    # ones.
    *before, _ = brackets.split(b"[]")
    steps = accumulate(len(piece) - 2 * piece.count(b"]") for piece in before)
    return levels + max(steps, default=-1) + 1
