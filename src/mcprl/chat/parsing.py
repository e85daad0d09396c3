"""Parses the text of a turn into its thinking and its tool calls, in the syntax of the model's family.

Any text can be parsed. A call that cannot be used has a `problem`, a message that the policy gets in its next turn.
Nothing here raises, and parsing takes linear time in the length of the text.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from itertools import accumulate
from typing import Any, ParamSpec, Self, TypeVar, cast

from renderers.base import ParsedToolCall, Renderer, Tokenizer, ToolCallParseStatus

from mcprl.records import ToolCall


class Problem(StrEnum):
    """A kind of problem with a call. Its value is the message, with placeholders in braces.

    >>> said = Problem.UNCLOSED.say(closing="</tool_call>")
    >>> said
    'the call has no closing </tool_call>'
    >>> Problem.of(said).name
    'UNCLOSED'
    """

    UNCLOSED = "the call has no closing {closing}"
    NOT_JSON = "the call is not valid JSON: {why}"
    TEXT_AFTER_JSON = "the JSON of the call is followed by {found}, but only {allowed} may follow"
    NOT_AN_OBJECT = 'the call must be a JSON object with "name" and "{arguments}"'
    NO_NAME = "the call does not name a tool{where}"
    MISPLACED_ARGUMENTS = 'the arguments must be in "{arguments}", but the call has {found}'
    ARGUMENTS_NOT_AN_OBJECT = "the arguments must be a JSON object{where}"
    TOO_DEEP = "the call is nested too deeply: the limit is {limit} levels"
    NUMBER_TOO_LONG = "the call contains a number with too many digits"
    NOT_FINITE = "the call contains NaN or an infinite number, which JSON does not allow"
    HALF_CHARACTER = "the call contains half of a surrogate pair, which is not a character"
    TOO_MANY = "a turn may contain at most {limit} calls: the rest is ignored"
    # For families whose calls are parsed by `renderers`:
    MALFORMED = "the call does not use this model's call format: see the instructions above the tools"
    UNREADABLE = "the turn cannot be read: it is nested too deeply, or contains a number with too many digits"

    def say(self, **details: object) -> str:
        """Return the message with its placeholders filled in."""
        return self.value.format(**details)

    @classmethod
    def of(cls, sentence: str) -> Self:
        """Return the kind of problem that a message from `say` describes."""
        return next(kind for kind in cls if sentence.startswith(kind.partition("{")[0]))


_CLOSE = "</think>"
_OPENED_BY_THE_TURN = re.compile(r"\s*<think>")


class Thinking(StrEnum):
    """Whether a turn begins with thinking.

    NONE: the prompt has closed thinking, or the model does not think. OPTIONAL: the model may open thinking with
    `<think>`. OPEN: the prompt ends with `<think>`, so the turn begins inside the thinking.
    """

    NONE = "none"
    OPTIONAL = "optional"
    OPEN = "open"


def split_thinking(text: str, thinking: Thinking, *, call_opening: str | None) -> tuple[str, str]:
    """Split the text of a turn into its thinking and the rest.

    Thinking ends at the first `</think>`, so a call drafted before it is never executed. If there is none, thinking
    ends at the first `call_opening`, or else at the end of the text. A turn that begins with `<think>` always has
    thinking, even with NONE.

    >>> split_thinking("Ana, then. </think>Lima.", Thinking.OPEN, call_opening="<tool_call>")
    ('Ana, then. ', 'Lima.')
    """
    opened = _OPENED_BY_THE_TURN.match(text)
    if opened is None and thinking is not Thinking.OPEN:
        return "", text
    start = opened.end() if opened else 0
    closed = text.find(_CLOSE, start)
    if closed >= 0:
        return text[start:closed], text[closed + len(_CLOSE) :]
    called = text.find(call_opening, start) if call_opening is not None else -1
    end = called if called >= 0 else len(text)
    return text[start:end], text[end:]


_Given = ParamSpec("_Given")
_Read = TypeVar("_Read")

CALL_OPENING = "<tool_call>"
_CALL_CLOSING = "</tool_call>"
_ARGUMENTS = ("arguments",)

# A policy stuck in a loop writes thousands of calls, and all of them would be executed.
MAX_CALLS = 128

# Far more than the arguments of any tool need, and far below the limits of the decoders, validators and encoders that
# process a call.
_MAX_NESTING = 100
_EXCERPT = 24
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # possessive: no backtracking
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False)


def uncollected(read: Callable[_Given, _Read]) -> Callable[_Given, _Read]:
    """Wrap `read` so that the garbage collector is disabled while it runs.

    Decoded JSON has no cycles. But every 700 new lists trigger the collector, and 256 KB of brackets are 130,000 lists,
    so collection would take several times as long as decoding. The collector stays off until the whole turn is parsed,
    because the first object created after decoding would trigger it.
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
    """Decode the JSON value at `start`. Returns the value and the index of its end, or a message if it is not valid."""
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
    """Return the beginning of the text after index `place`, for an error message."""
    return repr(text[place : place + _EXCERPT]) if place < len(text) else "the end"


def skip_space(text: str, place: int) -> int:
    """Return the index of the first character at or after `place` that is not whitespace."""
    return cast("re.Match[str]", _SPACE.match(text, place)).end()


def unusable_call(problem: str, name: str = "") -> ToolCall:
    """Return a call that could not be parsed. `problem` tells the policy why."""
    return ToolCall(name=name.encode(errors="replace").decode(), arguments={}, problem=problem)


def checked_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """Return a call that can be sent as JSON, or one with a `problem`.

    The decoder accepts NaN and lone surrogates, but JSON has neither.
    """
    try:
        written = _ENCODER.encode([name, arguments])
        written.encode()
    except UnicodeEncodeError:
        return unusable_call(Problem.HALF_CHARACTER.say(), name)
    except RecursionError:
        return unusable_call(Problem.TOO_DEEP.say(limit=_MAX_NESTING), name)
    except ValueError:
        return unusable_call(Problem.NOT_FINITE.say(), name)
    # Counting brackets first is cheap, and few calls have this many. One level is the list around name and arguments.
    if written.count("[") + written.count("{") > _MAX_NESTING and _nesting(written) - 1 > _MAX_NESTING:
        return unusable_call(Problem.TOO_DEEP.say(limit=_MAX_NESTING), name)
    return ToolCall(name=name, arguments=arguments)


def call_of(data: object, *, arguments_in: tuple[str, ...]) -> ToolCall:
    """Return the call in a decoded JSON value. Its arguments are in one of the fields `arguments_in`."""
    if not isinstance(data, dict):
        return unusable_call(Problem.NOT_AN_OBJECT.say(arguments=arguments_in[0]))
    fields = cast("dict[str, Any]", data)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        return unusable_call(Problem.NO_NAME.say(where=': "name" must be the name of a tool'))
    given = [field for field in arguments_in if field in fields]
    if len(given) > 1 or (not given and len(fields) > 1):
        found = " and ".join(repr(field[:_EXCERPT]) for field in given or [f for f in fields if f != "name"][:1])
        return unusable_call(Problem.MISPLACED_ARGUMENTS.say(arguments=arguments_in[0], found=found), name)
    arguments: object = fields[given[0]] if given else {}
    if not isinstance(arguments, dict):
        return unusable_call(Problem.ARGUMENTS_NOT_AN_OBJECT.say(where=f', in "{given[0]}"'), name)
    return checked_call(name, cast("dict[str, Any]", arguments))


@uncollected
def parse_tool_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn into its prose and its calls, in order.

    >>> parse_tool_calls('Let me see. <tool_call>{"name": "find_person", "arguments": {"name": "Ana"}}</tool_call>')
    ('Let me see.', (ToolCall(name='find_person', arguments={'name': 'Ana'}, problem=None),))
    """
    # Why this takes linear time, although decoding a broken call may run past its end and over later calls: Let two
    # decodings overlap. The later one starts at an opening tag that the earlier one passed. A decoder passes a tag only
    # inside a string, so at that point the earlier one is inside a string and the later one is not. From there on, each
    # quote moves one of them into a string and the other out of it. (An escaped quote follows a backslash, which ends
    # the decoding that is outside a string.) So at the next opening tag, one of the two is outside a string and ends
    # there. Hence no character is decoded more than twice. (A JSON error counts all lines before it. That is fast,
    # there are at most MAX_CALLS errors, and text that was parsed is cut off from time to time.)
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
    """Read the call whose opening tag ends at `start`. Returns the call and the index after its closing tag."""
    read, name = read_value(text, start), ""
    if not isinstance(read, str):
        value, end = read
        call = call_of(value, arguments_in=_ARGUMENTS)
        end = skip_space(text, end)
        if text.startswith(_CALL_CLOSING, end):
            return call, end + len(_CALL_CLOSING)
        read = Problem.TEXT_AFTER_JSON.say(found=excerpt(text, end), allowed=_CALL_CLOSING)
        start, name = end, call.name
    closed = text.find(_CALL_CLOSING, start)
    if closed < 0:
        return unusable_call(Problem.UNCLOSED.say(closing=_CALL_CLOSING), name), len(text)
    return unusable_call(read, name), closed + len(_CALL_CLOSING)


def _nesting(written: str) -> int:
    """Return how deeply lists and objects are nested in a JSON text. Fast even for 100,000 brackets."""
    brackets = _STRING.sub("", written).encode().translate(_ONE_KIND, _NO_BRACKETS)
    # Removing all innermost pairs removes one level. As long as there are many, the text shrinks by at least an eighth.
    levels = 0
    while brackets.count(b"[]") > len(brackets) // 16:
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    # The depth at each remaining innermost pair: opening minus closing brackets before it.
    *before, _ = brackets.split(b"[]")
    steps = accumulate(len(piece) - 2 * piece.count(b"]") for piece in before)
    return levels + max(steps, default=-1) + 1


_TAG = "<|python_tag|>"
_LLAMA_ARGUMENTS = ("parameters", "arguments")
_BEGINS_LIKE_A_CALL = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"')
_BETWEEN_CALLS = re.compile(r"[\s;]*")


@uncollected
def parse_llama_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn into its prose and its calls. One of the two is always empty.

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
        calls.append(call_of(value, arguments_in=_LLAMA_ARGUMENTS))
        start = cast("re.Match[str]", _BETWEEN_CALLS.match(text, end)).end()
        if start == len(text):
            return calls
        if not text.startswith("{", start):
            problem = Problem.TEXT_AFTER_JSON.say(found=excerpt(text, start), allowed="another call")
            return [*calls[:-1], unusable_call(problem, calls[-1].name)]
        too_many = len(calls) == MAX_CALLS
        read = Problem.TOO_MANY.say(limit=MAX_CALLS) if too_many else read_value(text, start)
    return [*calls, unusable_call(read)]


# These match in linear time, because no text can match in two ways (`*+` and `++` are possessive).
_FUNCTION = re.compile(
    r"\s*+<function=[^>]++>\s*+"
    r"(?:<parameter=[^>]++>(?:(?!</parameter>).)*+</parameter>\s*+)*+"
    r"(?:</function>\s*+)?+",
    re.DOTALL,
)
_INVOKES = re.compile(
    r"\s*+(?:<invoke name=\"[^\"]++\">\s*+"
    r"(?:<parameter name=\"[^\"]++\">(?:(?!</parameter>|</invoke>).)*+</parameter>\s*+)*+"
    r"</invoke>\s*+)*+",
    re.DOTALL,
)


def _pairs(mark: str = "") -> re.Pattern[str]:
    """Return the pattern of a name followed by keys and values. In some model families, tags end with `mark`."""
    key = f"<arg_key{mark}>(?:(?!</arg_key{mark}>).)*+</arg_key{mark}>"
    value = f"<arg_value{mark}>(?:(?!</arg_value{mark}>).)*+</arg_value{mark}>"
    return re.compile(rf"[^<]*+(?:<tool_sep{mark}>\s*+)?+(?:{key}\s*+{value}\s*+)*+", re.DOTALL)


_SYNTAXES = {
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), _FUNCTION),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _FUNCTION),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), _pairs()),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"), _pairs()),
    "hy3": _pairs(":opensource"),
    "minimax-m2": _INVOKES,
}


def is_whole(family: str, call: str) -> bool:
    """Return whether a call is well-formed. Only checked for model families that write arguments in tags.

    >>> is_whole("glm-4.5", "send<arg_key>to</arg_key><arg_value>Ana</arg_value>")
    True
    >>> is_whole("glm-4.5", "send<arg_key>to</arg_key><arg_value>Ana")
    False
    """
    syntax = _SYNTAXES.get(family)
    return syntax is None or syntax.fullmatch(call) is not None


ToolSpec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A parsed turn. `text` is the whole turn, `prose` is the turn without thinking and calls.

    ParsedTurn(
        text='Let me see. <tool_call>{"name": "find_person", "arguments": {"name": "Ana"}}</tool_call><|im_end|>',
        prose="Let me see.",
        calls=(ToolCall(name="find_person", arguments={"name": "Ana"}),),
    )
    """

    text: str
    prose: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class _JsonCalls:
    """How a model family writes calls as JSON. `opening` is the text at the start of every call, if there is one."""

    parse: Callable[[str], tuple[str, tuple[ToolCall, ...]]]
    opening: str | None


_TAGGED = _JsonCalls(parse_tool_calls, CALL_OPENING)
_BARE = _JsonCalls(parse_llama_calls, None)

# `prime-qwen3` is not here: it writes <function=…> inside the tags, as Qwen 3.5 does.
JSON_FAMILIES: Mapping[str, _JsonCalls] = {
    "chatml": _TAGGED,
    "template": _TAGGED,
    "qwen3": _TAGGED,
    "qwen3-vl": _TAGGED,
    "llama-3": _BARE,
}

_STATUSES = {
    ToolCallParseStatus.UNCLOSED_BLOCK: Problem.UNCLOSED.say(closing="marker"),
    ToolCallParseStatus.MISSING_NAME: Problem.NO_NAME.say(where=""),
    ToolCallParseStatus.MALFORMED_STRUCTURE: Problem.MALFORMED.say(),
}


class TurnReader:
    """Parses the turns of one model."""

    def __init__(
        self, renderer: Renderer, tokenizer: Tokenizer, family: str, thinking: Thinking, stop_token_ids: Sequence[int]
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._family = family
        self._thinking = thinking
        self._stop_texts = {token_id: self._decode([token_id]) for token_id in stop_token_ids}

    def read(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse the turn that was sampled after `prompt_ids` with these tools. The prose excludes the stop token."""
        text = self._decode(sampled_ids)
        if self._family not in JSON_FAMILIES:
            prose, calls = self._read_with_renderer(prompt_ids, sampled_ids, tools)
            return ParsedTurn(text, prose, calls)
        stopped_by = self._stop_texts.get(sampled_ids[-1], "") if sampled_ids else ""
        return ParsedTurn(text, *read_text(text.removesuffix(stopped_by), self._family, self._thinking))

    def _read_with_renderer(
        self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSpec]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        ids = list(sampled_ids)
        # Some families close a call with the stop token. The renderer would treat any other stop token as text.
        if ids and ids[-1] in self._stop_texts and ids[-1] not in self._renderer.get_stop_token_ids():
            ids.pop()
        try:
            parsed = self._renderer.parse_response(
                ids,
                tools=[dict(tool) for tool in tools] or None,  # pyright: ignore[reportArgumentType]
                prompt_ids=list(prompt_ids),
            )
        except (RecursionError, ValueError):
            # The families' JSON decoders raise these errors on deep nesting and on very long numbers.
            return "", (unusable_call(Problem.UNREADABLE.say()),)
        calls = [_translated(call, self._family) for call in parsed.tool_calls[:MAX_CALLS]]
        if len(parsed.tool_calls) > MAX_CALLS:
            calls.append(unusable_call(Problem.TOO_MANY.say(limit=MAX_CALLS)))
        return parsed.content.strip(), tuple(calls)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def read_text(text: str, family: str, thinking: Thinking) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the prose and the calls of a turn, for model families that write calls as JSON.

    >>> read_text("<think>Easy.</think>\\n\\nIt is Lima.", "qwen3", Thinking.OPTIONAL)
    ('It is Lima.', ())
    """
    written = JSON_FAMILIES[family]
    _, rest = split_thinking(text, thinking, call_opening=written.opening)
    return written.parse(rest)


def _translated(parsed: ParsedToolCall, family: str) -> ToolCall:
    """Convert a call that `renderers` parsed to a `ToolCall`."""
    name, arguments = parsed.name or "", parsed.arguments
    if (problem := _STATUSES.get(parsed.status)) is not None:
        return unusable_call(problem, name)
    if not is_whole(family, parsed.raw):
        return unusable_call(Problem.MALFORMED.say(), name)
    # Unknown tools are reported later, with the names of the available ones. In families that write arguments one by
    # one, a value that is not JSON is a string; the tool's schema decides whether it is valid.
    if isinstance(arguments, dict):
        return checked_call(name, arguments)
    if parsed.status is ToolCallParseStatus.INVALID_JSON:
        return unusable_call(_what_is_wrong_with(arguments), name)
    return unusable_call(Problem.ARGUMENTS_NOT_AN_OBJECT.say(where=""), name)


def _what_is_wrong_with(arguments: str | None) -> str:
    if arguments is None:  # the family does not write arguments as JSON
        return Problem.MALFORMED.say()
    read = read_value(arguments, 0)
    if isinstance(read, str):
        return read
    return Problem.TEXT_AFTER_JSON.say(found=excerpt(arguments, read[1]), allowed="the end of the call")
