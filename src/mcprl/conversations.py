"""Reads tool calls and their results from chat messages in the formats that logs use.

A call is an entry of `tool_calls` (or the older `function_call`) of an assistant message, a `<tool_call>` block in its
text, or a text that consists only of `{"function_call": …}`. A result is the text of a tool message, a
`<tool_response>` block (also in a user message, where chat templates put it), or `Function result: {…}`. Reading takes
linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from mcprl.files import canonical_json, is_unicode

# Thought tags inside a call belong to the call. An unclosed thought extends to the end of the text.
_THOUGHTS = re.compile(r"\s*(?:<think>.*?(?:</think>|\Z)\s*)*", re.DOTALL)
_CALL = re.compile(r"<think>.*?(?:</think>|\Z)|<tool_call>(?P<body>.*?)(?P<end></tool_call>|\Z)", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>(?P<body>.*?)(?P<end></tool_response>|\Z)", re.DOTALL)
_RESULT = "Function result:"
_ANSWER_ROLES = frozenset({"tool", "function"})
# Keys of an object that wraps an answer. An object with any other key is itself the answer.
_ENVELOPE = frozenset({"content", "error", "retryable", "isError", "is_error", "function_name", "name", "result"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call in a log. `problem` says why it cannot be read; then name and arguments may be missing.

    WrittenCall(name="fmp_get_quote", arguments={"symbol": "AAPL"}, id="call_7")
    """

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    id: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnswer:
    """A tool result in a log. `failed` is set if the log marks it as failed; other results may still report an error.

    WrittenAnswer(text="**AAPL - Apple Inc.**\\nPrice: $213.88", name="fmp_get_quote")
    """

    text: str
    name: str | None = None
    id: str | None = None
    failed: bool = False
    problem: str | None = None


def is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether a message contains tool results."""
    role = message.get("role")
    return role in _ANSWER_ROLES or (role == "user" and text_of(message).lstrip().startswith("<tool_response>"))


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message. Its content may be a list of parts."""
    return _joined(message.get("content"))


def calls_in(message: Mapping[str, Any]) -> list[WrittenCall]:
    """Return the calls of an assistant message, in order, including those that cannot be parsed."""
    entries: Any = message.get("tool_calls")
    if isinstance(entries, list) and entries:
        return [_call_of(entry) for entry in cast("list[Any]", entries)]
    if message.get("function_call") is not None:
        return [_call_of(message["function_call"])]
    text = _THOUGHTS.sub("", text_of(message), count=1).strip()
    if text.startswith("{") and '"function_call"' in text:
        return _function_call(text)
    return [_call_in(block) for block in _blocks(text, _CALL)]


def prose_of(message: Mapping[str, Any]) -> str:
    """Return the text of an assistant message without its thoughts and calls."""
    text = _THOUGHTS.sub("", text_of(message), count=1).strip()
    if message.get("tool_calls") or message.get("function_call") is not None:
        return text
    if text.startswith("{") and '"function_call"' in text:
        return "" if calls_in(message) else text
    return _CALL.sub("", text).strip()


def answers_in(message: Mapping[str, Any]) -> list[WrittenAnswer]:
    """Return the results in a message, in order. There is more than one only if they are `<tool_response>` blocks."""
    text = text_of(message)
    name: Any = message.get("name")
    answer_id: Any = message.get("tool_call_id")
    known: dict[str, Any] = {
        "name": name if isinstance(name, str) else None,
        "id": answer_id if isinstance(answer_id, str) else None,
    }
    stripped = text.strip()
    if stripped.startswith("<tool_response>"):
        return [_answer_of(block, known) for block in _blocks(stripped, _RESPONSE)]
    if stripped.startswith(_RESULT):
        return [_answer_of(stripped.removeprefix(_RESULT), known)]
    return [WrittenAnswer(text=text, failed=message.get("is_error") is True, **known)]


def _blocks(text: str, tagged: re.Pattern[str]) -> Iterator[str | None]:
    """Yield the text between each pair of tags; None for a tag that is never closed."""
    for found in tagged.finditer(text):
        if found["body"] is not None:
            yield found["body"] if found["end"] else None


def _call_in(block: str | None) -> WrittenCall:
    if block is None:
        return WrittenCall(problem="the call has no closing </tool_call>")
    try:
        return _call_of(_decoded(block))
    except ValueError as error:
        return WrittenCall(problem=f"the call is not JSON: {error}")


def _function_call(text: str) -> list[WrittenCall]:
    try:
        value = cast("dict[str, Any]", _decoded(text))
    except ValueError as error:
        return [WrittenCall(problem=f"the call is not JSON: {error}")]
    return [_call_of(value["function_call"])] if "function_call" in value else []


def _call_of(entry: Any) -> WrittenCall:
    """Read a call from `{"name", "arguments"}`, or from an OpenAI entry that has this object under "function"."""
    if not isinstance(entry, dict):
        return WrittenCall(problem="the call is not an object")
    fields = cast("dict[str, Any]", entry)
    call_id: Any = fields.get("id")
    known_id = call_id if isinstance(call_id, str) else None
    inner: Any = fields.get("function", fields)
    if not isinstance(inner, dict):
        return WrittenCall(id=known_id, problem="the call is not an object")
    name: Any = cast("dict[str, Any]", inner).get("name")
    arguments: Any = cast("dict[str, Any]", inner).get("arguments", {})
    if not isinstance(name, str) or not name or not is_unicode(name):
        return WrittenCall(id=known_id, problem="the call does not name a tool")
    if isinstance(arguments, str):
        try:
            arguments = _decoded(arguments) if arguments.strip() else {}
        except ValueError as error:
            return WrittenCall(name=name, id=known_id, problem=f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return WrittenCall(name=name, id=known_id, problem="the arguments are not an object")
    given = cast("dict[str, Any]", arguments)
    try:
        canonical_json(given)
    except ValueError as error:
        return WrittenCall(name=name, id=known_id, problem=f"the arguments contain {error}")
    return WrittenCall(name=name, arguments=given, id=known_id)


def _answer_of(body: str | None, known: Mapping[str, Any]) -> WrittenAnswer:
    """Read a tool result. If the log wrapped it in an object, the wrapper is removed. Other text is kept as it is."""
    if body is None:
        return WrittenAnswer(text="", problem="the result has no closing </tool_response>", **known)
    text = body.strip()
    try:
        value = _decoded(text) if text.startswith("{") else None
    except ValueError:
        value = None
    if not isinstance(value, dict) or not _is_envelope(fields := cast("dict[str, Any]", value)):
        return WrittenAnswer(text=text, **known)
    name: Any = fields.get("function_name", fields.get("name"))
    if isinstance(name, str):
        known = {**known, "name": name}
    if fields.get("error"):
        return WrittenAnswer(text=_joined(fields["error"]), failed=True, **known)
    failed = fields.get("isError") is True or fields.get("is_error") is True
    return WrittenAnswer(text=_joined(fields.get("content", fields.get("result"))), failed=failed, **known)


def _is_envelope(fields: Mapping[str, Any]) -> bool:
    holds_answer = "content" in fields or "error" in fields or fields.keys() >= {"function_name", "result"}
    return holds_answer and fields.keys() <= _ENVELOPE


def _joined(content: Any) -> str:
    """Return a string unchanged, the joined texts of a list of parts, or anything else as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list) and content:
        parts = cast("list[Any]", content)
        texts = [cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None for part in parts]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(cast("list[str]", texts))
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _decoded(text: str) -> Any:
    """Decode strict JSON. Python's decoder alone would accept NaN and raise RecursionError on deep nesting."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
