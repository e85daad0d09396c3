"""What a person types when they act as the model: a call in few keystrokes, as JSON, or the final answer.

fmp_get_quote symbol=VLKN                           a word without quotes is text, or what the schema says it is
send_slack_message channel=#general message="Hi!"   quotes as in a shell
execute_python code=<<                              the lines that follow, up to one that is a single full stop
{"name": "fmp_get_quote", "arguments": {"symbol": "VLKN"}}        or a list of several, which run together
answer VLKN closed at $213.88
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcprl.records import ToolCall
from mcprl.suggestions import did_you_mean

__all__ = ["Typed", "TypingError", "read_typed"]

_ANSWER = "answer"
_BLOCK = "<<"
_END_OF_BLOCK = "."


class TypingError(ValueError):
    """The line is neither a call nor an answer; the message says what to type instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """What a line means: calls, or an answer.

    Typed(calls=(ToolCall(name="fmp_get_quote", arguments={"symbol": "VLKN"}),), answer=None)
    """

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None


def read_typed(line: str, tools: Mapping[str, Mapping[str, Any]], next_line: Callable[[], str]) -> Typed:
    """Read a line. `tools` has the schema of each tool by its name; `next_line` gives the lines of a block."""
    text = line.strip()
    word, _, rest = text.partition(" ")
    if word == _ANSWER:
        return Typed(answer=rest.strip())
    if text.startswith(("{", "[")):
        return Typed(calls=_calls_of_json(text))
    if word not in tools:
        raise TypingError(
            f"there is no tool {word!r}{did_you_mean(word, tools)}; finish with: {_ANSWER} YOUR ANSWER",
        )
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise TypingError(f"a quote is not closed ({error})") from error
    return Typed(calls=(ToolCall(name=word, arguments=_arguments(words, tools[word], next_line)),))


def _arguments(words: Sequence[str], schema: Mapping[str, Any], next_line: Callable[[], str]) -> dict[str, Any]:
    properties: Mapping[str, Any] = schema.get("properties", {})
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise TypingError(f"{word!r} is no name=value; quote a text with spaces: {name}=… or message='…'")
        arguments[name] = _block(next_line) if value == _BLOCK else _value(value, properties.get(name, {}))
    return arguments


def _block(next_line: Callable[[], str]) -> str:
    lines: list[str] = []
    while (line := next_line()) != _END_OF_BLOCK:
        lines.append(line)
    return "\n".join(lines)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A text where the schema wants one, else what it says as JSON; a text that is no JSON stays what it is."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _calls_of_json(text: str) -> tuple[ToolCall, ...]:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TypingError(f"that is no JSON: {error}") from error
    entries = cast("list[Any]", value) if isinstance(value, list) else [value]
    return tuple(_call_of(entry) for entry in entries)


def _call_of(entry: Any) -> ToolCall:
    fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypingError('write a call as {"name": "…", "arguments": {…}}')
    return ToolCall(name=name, arguments=cast("dict[str, Any]", arguments))
