"""Reads recorded conversations: the tool calls in them and their results.

A file holds rows, as a JSON list or one per line. A row is a list of messages, or an object with such a list as
"prompt", "messages" or "extra_info.original_conversation"; it may list its tools as "tools". `mcprl.conversations`
parses the messages. Anything that cannot be parsed is reported with its place and the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mcprl.conversations import WrittenAnswer, WrittenCall, answers_in, calls_in, is_answer, text_of
from mcprl.errors import CassetteError
from mcprl.tools.catalog import ToolDefinition

_DECODER = json.JSONDecoder()
# The start of a JSON list of objects, or of an object in a `<tools>` block with one object per line.
_BEGINNING = re.compile(r"\[\s{0,64}\{|^\{", re.MULTILINE)
# For each JSON error, Python counts the lines before it, so many broken lists would take quadratic time.
_MAX_BROKEN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool definition from a file or a prompt. `read_only` is None if there is no such hint, as is usual.

    ListedTool(definition=ToolDefinition(name="now", description="The time.", parameters={"type": "object"}))
    """

    definition: ToolDefinition
    read_only: bool | None = None


def listed_tools(value: Any) -> dict[str, ListedTool] | None:
    """Return the tools of a list by name, or None if `value` is not a list of tools."""
    if not isinstance(value, list) or not value:
        return None
    tools = [_listed(entry) for entry in cast("list[Any]", value)]
    return None if None in tools else {tool.definition.name: tool for tool in tools if tool is not None}


def tools_in_prompt(text: str) -> dict[str, ListedTool]:
    """Return the tools that a system prompt lists as JSON, anywhere in the text. Other text is skipped."""
    tools: dict[str, ListedTool] = {}
    for value in _values(text):
        tools.update(listed_tools(value if isinstance(value, list) else [value]) or {})
    return tools


def _values(text: str) -> Iterator[Any]:
    place = broken = 0
    while broken < _MAX_BROKEN and (found := _BEGINNING.search(text, place)) is not None:
        try:
            value, place = _DECODER.raw_decode(text, found.start())
        except json.JSONDecodeError as error:
            # Continue at the error position, so that nothing is parsed twice.
            place = max(found.end(), error.pos)
            broken += 1
        except (ValueError, RecursionError):
            return
        else:
            yield value


def _listed(entry: Any) -> ListedTool | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    inner: Any = fields.get("function") if fields.get("type") == "function" else fields
    if not isinstance(inner, dict):
        return None
    tool = cast("dict[str, Any]", inner)
    name, description = tool.get("name"), tool.get("description", "")
    parameters = _first(tool, "parameters", "inputSchema", "input_schema")
    if not isinstance(name, str) or not name or not isinstance(description, str | None):
        return None
    # A tool without arguments may omit its schema, but then it needs a description: a name alone could be anything.
    if not isinstance(parameters, dict) and not (parameters is None and description):
        return None
    output: Any = _first(tool, "outputSchema", "output_schema")
    hints: Any = tool.get("annotations")
    hints = cast("dict[str, Any]", hints) if isinstance(hints, dict) else {}
    read_only: Any = hints.get("readOnlyHint")
    definition = ToolDefinition(
        name=name,
        description=description or "",
        parameters=cast("dict[str, Any]", parameters or {"type": "object", "properties": {}}),
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        read_only=read_only is True,
        idempotent=hints.get("idempotentHint") is True,
    )
    return ListedTool(definition=definition, read_only=read_only if isinstance(read_only, bool) else None)


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if name in fields), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in the files, counted from 1. `message` is 0 for a whole row.

    str(Place(file="train.json", row=3, message=5)) == "train.json, row 3, message 5"
    """

    file: str
    row: int
    message: int = 0

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}" + (f", message {self.message}" if self.message else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call and its result. `failed` means that the log marks it as failed; if False, the text may still be an error.

    RecordedCall(tool="fmp_get_quote", arguments={"symbol": "AAPL"}, text="Price: $213.88",
                 place=Place(file="train.json", row=3, message=5))
    """

    tool: str
    arguments: Mapping[str, Any]
    text: str
    place: Place
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A part of a log that could not be parsed, and why.

    Unreadable(place=Place(file="train.json", row=3, message=5), why="the call has no result")
    """

    place: Place
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Everything found in the files, in order. If rows define a tool differently, the last definition counts.

    Recordings(calls=[RecordedCall(...)], tools={"now": ListedTool(...)}, unreadable=[])
    """

    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    tools: dict[str, ListedTool] = field(default_factory=dict[str, ListedTool])
    unreadable: list[Unreadable] = field(default_factory=list[Unreadable])


def read_recordings(paths: Iterable[Path]) -> Recordings:
    """Read recorded conversations. Raises CassetteError for a file that contains none."""
    found = Recordings()
    prompts_read: set[str] = set()
    for path in paths:
        for place, row in rows_of(path, found):
            for conversation in conversations_of(row, place, found):
                read_conversation(conversation, place, found, prompts_read)
    return found


def rows_of(path: Path, found: Recordings) -> Iterator[tuple[Place, Any]]:
    """Yield the rows of a file. Lines that cannot be read are added to `found`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"{path} cannot be read: {error}", fix="pass files of recorded conversations") from error
    try:
        whole: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield from _lines(path, text, error, found)
        return
    rows = cast("list[Any]", whole) if isinstance(whole, list) else [whole]
    if rows and all(_is_message(row) for row in rows):
        rows = [rows]
    for number, row in enumerate(rows, start=1):
        yield Place(file=path.name, row=number), row


def _lines(path: Path, text: str, as_a_whole: Exception, found: Recordings) -> Iterator[tuple[Place, Any]]:
    """Yield one row per line. If no line is JSON, report the error from parsing the whole file: it is more helpful."""
    broken: list[Unreadable] = []
    rows = 0
    # Not splitlines: it also splits at characters that may occur inside JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = Place(file=path.name, row=number)
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken.append(Unreadable(place=place, why=f"the line is not JSON: {error}"))
            continue
        rows += 1
        yield place, row
    if not rows:
        fix = "pass files of recorded conversations: a JSON list of rows, or one row per line"
        raise CassetteError(f"{path} is not JSON: {as_a_whole}", fix=fix)
    found.unreadable.extend(broken)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(cast("dict[str, Any]", value).get("role"), str)


def conversations_of(row: Any, place: Place, found: Recordings) -> Iterator[list[Any]]:
    """Yield the conversations of a row, and add the tools that it lists to `found`."""
    if isinstance(row, list):
        yield cast("list[Any]", row)
        return
    if not isinstance(row, dict):
        found.unreadable.append(Unreadable(place=place, why="the row is neither an object nor a list of messages"))
        return
    fields = cast("dict[str, Any]", row)
    extra: Any = fields.get("extra_info")
    original = cast("dict[str, Any]", extra).get("original_conversation") if isinstance(extra, dict) else None
    candidates = (fields.get("prompt"), fields.get("messages"), original)
    conversations = [cast("list[Any]", value) for value in candidates if isinstance(value, list)]
    if not conversations:
        why = 'the row has no list of messages as "prompt", "messages" or "extra_info.original_conversation"'
        found.unreadable.append(Unreadable(place=place, why=why))
    found.tools.update(listed_tools(fields.get("tools")) or {})
    yield from conversations


def read_conversation(conversation: list[Any], row: Place, found: Recordings, prompts_read: set[str]) -> None:
    """Collect calls until their results follow, then pair them. One message may make several calls."""
    calls: list[tuple[Place, WrittenCall]] = []
    answers: list[tuple[Place, WrittenAnswer]] = []
    for number, value in enumerate(conversation, start=1):
        place = Place(file=row.file, row=row.row, message=number)
        if not _is_message(value):
            found.unreadable.append(Unreadable(place=place, why='the message is not an object with a "role"'))
            continue
        message = cast("dict[str, Any]", value)
        if is_answer(message):
            answers.extend((place, answer) for answer in answers_in(message))
            continue
        is_assistant = message["role"] == "assistant"
        if answers or not is_assistant:
            _pair(calls, answers, found)
            calls, answers = [], []
        if is_assistant:
            calls.extend((place, call) for call in calls_in(message))
        elif message["role"] in {"system", "developer"} and (prompt := text_of(message)) not in prompts_read:
            # The rows of a file usually share one long prompt, so parse each prompt once.
            prompts_read.add(prompt)
            found.tools.update(tools_in_prompt(prompt))
    _pair(calls, answers, found)


def _pair(
    calls: list[tuple[Place, WrittenCall]], answers: list[tuple[Place, WrittenAnswer]], found: Recordings
) -> None:
    """Match calls and results by id, or in order if there are equally many of both."""
    by_id = {answer.id: answer for _, answer in answers if answer.id is not None}
    called = {call.id for _, call in calls if call.id is not None}
    rest_of_answers = [(place, answer) for place, answer in answers if answer.id not in called]
    rest_of_calls = [call for _, call in calls if call.id not in by_id]
    in_order = iter(rest_of_answers)
    agree = len(rest_of_calls) == len(rest_of_answers)
    for place, call in calls:
        if call.id is not None and call.id in by_id:
            _keep(place, call, by_id[call.id], found)
        elif agree:
            _keep(place, call, next(in_order)[1], found)
        else:
            many = f"{len(rest_of_calls)} calls cannot be matched with {len(rest_of_answers)} results"
            why = many if rest_of_answers else "the call has no result"
            found.unreadable.append(Unreadable(place=place, why=call.problem or why))
    if rest_of_answers and not rest_of_calls:
        found.unreadable.extend(
            Unreadable(place=place, why="the result does not belong to a call") for place, _ in rest_of_answers
        )


def _keep(place: Place, call: WrittenCall, answer: WrittenAnswer, found: Recordings) -> None:
    problem = call.problem or answer.problem
    if problem is None and answer.name is not None and answer.name != call.name:
        problem = f"the call is to {call.name!r}, but its result is from {answer.name!r}"
    if problem is not None or call.arguments is None:
        found.unreadable.append(Unreadable(place=place, why=problem or "the call has no arguments"))
        return
    found.calls.append(
        RecordedCall(tool=call.name, arguments=call.arguments, text=answer.text, place=place, failed=answer.failed)
    )
