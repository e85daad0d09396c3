"""The syntax of each model family's tool calls, and a writer of turns in that syntax: the reverse of `parsing`.

For a thinking model, a written turn has empty thinking. A turn ends with the family's end token, or at the first stop
string of the sampler. Each written turn is parsed again, and an error is raised if the result differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile
from typing import Any, cast

from mcprl.chat.parsing import CALL_OPENING, ParsedTurn, Thinking
from mcprl.chat.rendering import Chat, FrameEncoder
from mcprl.errors import BadValueError, NoCallSyntaxError
from mcprl.files import is_unicode
from mcprl.records import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSyntax:
    r"""How a model family writes an argument, if it uses no JSON object: `before` NAME `between` VALUE `after`.

    FieldSyntax(before="<parameter=", between=">\n", after="\n</parameter>\n")
    """

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    r"""How a model family writes a call: `before_name` NAME `after_name` ARGUMENTS `closing`.

    Every call starts with `opening`. If that is None, a turn that begins like a call is a call. `separator` is the text
    between two calls. If that is None, a turn has at most one call. Arguments are a JSON object, or are written one by
    one as `fields`. `tokens` are the parts that the family's parser matches as tokens, not as text.

    CallSyntax(opening="<tool_call>", before_name='<tool_call>\n{"name": "', after_name='", "arguments": ',
               closing="}\n</tool_call>", separator="\n")
    """

    opening: str | None
    before_name: str
    after_name: str
    closing: str
    separator: str | None
    fields: FieldSyntax | None = None
    tokens: tuple[str, ...] = ()

    def cannot_write(self, name: str) -> bool:
        """Return whether the name of a tool or an argument would be parsed as a different one."""
        if self.before_name.endswith('"') and self.fields is None:  # the name is a JSON string
            return False
        return not name or name != name.strip() or re.search(r'[<>"\x00-\x1f]', name) is not None

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the tag that opens a call, all tags that end it or a value in it, and all `tokens`."""
        ends = [self.closing, *([self.fields.after] if self.fields else [])]
        found = [tag for end in ends for tag in re.findall(r"<[^<>]+>", end)]
        return tuple(dict.fromkeys([*([self.opening] if self.opening else []), *found, *self.tokens]))


_TAG, _TAG_END = CALL_OPENING, "</tool_call>"

_HERMES = CallSyntax(
    opening=_TAG,
    before_name=f'{_TAG}\n{{"name": "',
    after_name='", "arguments": ',
    closing=f"}}\n{_TAG_END}",
    separator="\n",
)
_LLAMA = CallSyntax(opening=None, before_name='{"name": "', after_name='", "parameters": ', closing="}", separator=None)
_QWEN_XML = CallSyntax(
    opening=_TAG,
    before_name=f"{_TAG}\n<function=",
    after_name=">\n",
    fields=FieldSyntax(before="<parameter=", between=">\n", after="\n</parameter>\n"),
    closing=f"</function>\n{_TAG_END}",
    separator="\n",
    tokens=(_TAG, _TAG_END),
)
_GLM_TOKENS = (_TAG, _TAG_END, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_5 = CallSyntax(
    opening=_TAG,
    before_name=_TAG,
    after_name="",
    fields=FieldSyntax(before="<arg_key>", between="</arg_key><arg_value>", after="</arg_value>"),
    closing=_TAG_END,
    separator="",
    tokens=_GLM_TOKENS,
)

CALL_SYNTAXES: Mapping[str, CallSyntax] = {
    **dict.fromkeys(("chatml", "template", "qwen3", "qwen3-vl"), _HERMES),
    "llama-3": _LLAMA,
    **dict.fromkeys(("prime-qwen3", "qwen3.5", "qwen3.6", "qwen3.8"), _QWEN_XML),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _QWEN_XML),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _GLM_5),
}
"""The call syntax of each model family that has a grammar, by the renderer's name. The other families have only models
with more than 100 billion parameters, which no engine that supports grammars can train."""


def syntax_of(chat: Chat) -> CallSyntax:
    """Return the call syntax of the chat's model family. Raises NoCallSyntaxError if there is no grammar for it."""
    if chat.family not in CALL_SYNTAXES:
        raise NoCallSyntaxError(
            f"sampling.constrain is on, but mcprl has no grammar for the call format of {chat.family}",
            fix=f"set sampling.constrain to off, or train a model of one of these families: {', '.join(CALL_SYNTAXES)}",
        )
    return CALL_SYNTAXES[chat.family]


Schema = Mapping[str, Any]

# No marker has one of these characters after `<`, so they are not escaped: comparisons in code (`a < 3`) stay readable.
_BEGINS_A_MARKER = re.compile(r'<(?![\s\d="\\])')
_IN_PLACE = ("anyOf", "oneOf", "allOf")


def write_json(value: object, schema: object, root: Schema) -> str:
    r"""Write a value as JSON, with fields in the order of its schema. `root` is the tool's whole schema.

    >>> schema = {"properties": {"name": {"type": "string"}, "share": {"type": "number"}}}
    >>> print(write_json({"share": 1e-05, "name": "<b>"}, schema, schema))
    {"name": "\u003cb>", "share": 0.00001}
    """
    return _written(value, _Place.of(root, [schema]))


@dataclass(frozen=True, slots=True)
class _Place:
    """All subschemas that apply to one value."""

    root: Schema
    parts: tuple[Schema, ...]

    @classmethod
    def of(cls, root: Schema, schemas: Sequence[object]) -> _Place:
        return cls(root, tuple(_parts_of(schemas, root)))

    def order(self, names: Sequence[str]) -> list[str]:
        """Sort names in the order of the schema, with unknown names last."""
        known = dict.fromkeys(name for part in self.parts for name in part.get("properties", {}))
        return [name for name in known if name in names] + [name for name in names if name not in known]

    def property(self, name: str) -> _Place:
        found = [part.get("properties", {}).get(name, part.get("additionalProperties")) for part in self.parts]
        return _Place.of(self.root, found)

    def item(self, index: int) -> _Place:
        found: list[object] = []
        for part in self.parts:
            first: Sequence[object] = part.get("prefixItems", ())
            found.append(first[index] if index < len(first) else part.get("items"))
        return _Place.of(self.root, found)


def _parts_of(schemas: Sequence[object], root: Schema) -> Iterator[Schema]:
    """Yield the schemas and all schemas that they refer to or combine, each once."""
    todo, seen = list(schemas), set[int]()
    while todo:
        schema = todo.pop(0)
        if not isinstance(schema, Mapping) or id(cast("Schema", schema)) in seen:
            continue
        part = cast("Schema", schema)
        seen.add(id(part))
        yield part
        todo += [_target(part["$ref"], root)] if "$ref" in part else []
        todo += [branch for keyword in _IN_PLACE for branch in part.get(keyword, ())]


def _target(reference: str, root: Schema) -> object:
    if not reference.startswith("#"):
        return None
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = cast("Schema", found).get(name) if isinstance(found, dict) else None
    return found


def _written(value: object, place: _Place) -> str:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        pairs = [f"{_text(name)}: {_written(fields[name], place.property(name))}" for name in place.order(list(fields))]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return "[" + ", ".join(_written(item, place.item(index)) for index, item in enumerate(items)) + "]"
    if isinstance(value, float) and "e" in repr(value):
        digits = format(Decimal(repr(value)), "f")
        return digits if "." in digits else f"{digits}.0"
    return _text(value)


def _text(value: object) -> str:
    return _BEGINS_A_MARKER.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))


ToolSpec = Mapping[str, Any]

_NUMBER = "functions.tool:0"
_ASKED: list[Message] = [{"role": "user", "content": "Ask."}]
_ANSWERED: list[Message] = [*_ASKED, {"role": "assistant", "content": "Answer."}, *_ASKED]
_CALLED = cast(
    "list[Message]",
    [
        *_ASKED,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": _NUMBER, "function": {"name": "tool", "arguments": {}}}],
        },
        {"role": "tool", "name": "tool", "content": "Result.", "tool_call_id": _NUMBER},
    ],
)


class TurnWriter:
    """Writes turns in the format of one model. `stop` are the sampler's stop strings."""

    def __init__(self, chat: Chat, *, stop: Sequence[str] = ()) -> None:
        if chat.family not in CALL_SYNTAXES:
            raise NoCallSyntaxError(
                f"calls cannot be imitated, because the call syntax of {chat.family} is not supported",
                fix="set algorithm.warm_start.weight to 0 and do not use `mcprl sft`, or train a model of one of these "
                f"families: {', '.join(CALL_SYNTAXES)}",
            )
        self._chat = chat
        self._syntax = CALL_SYNTAXES[chat.family]
        self._stop = tuple(stop)
        self._encoder = FrameEncoder(chat.tokenizer)
        self._end_of_call = self._end_in(_CALLED)
        self._end_of_answer = self._end_in(_ANSWERED)
        # Whether one sampled turn can have several calls.
        ends_at_a_call = any(text in self._syntax.closing for text in self._stop)
        self.joins_calls = self._syntax.separator is not None and not ends_at_a_call

    def write(
        self, prompt_ids: Sequence[int], text: str, calls: Sequence[ToolCall], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """Return the ids of a turn: text, then calls; either may be empty.

        Raises BadValueError if the model family's syntax cannot express the turn: it would be parsed differently.
        """
        syntax, frame, contents = self._syntax, [self._thought(prompt_ids)], list[str]()
        if text:
            contents.append(text)
            frame.append("\n" if calls and syntax.opening == CALL_OPENING else "")
        if calls:
            for place, call in enumerate(calls):
                frame[-1] += (syntax.separator or "") if place else ""
                self._add_call(frame, contents, call, _schema_of(call.name, tools))
        ids = self._ended(self._encoded(frame, contents), self._end_of_call if calls else self._end_of_answer)
        self._check(self._chat.parse(prompt_ids, ids, tools), text, calls)
        return ids

    def _add_call(self, frame: list[str], contents: list[str], call: ToolCall, schema: ToolSpec) -> None:
        """Append a call to the frame and its contents. The frame always has one more string than the contents."""
        syntax = self._syntax
        frame[-1] += syntax.before_name
        before = syntax.after_name
        if syntax.fields is None:
            is_json = syntax.before_name.endswith('"')
            contents.append(json.dumps(call.name, ensure_ascii=False)[1:-1] if is_json else call.name)
            frame.append(before)
            contents.append(write_json(call.arguments, schema, schema))
            before = ""
        else:
            contents.append(call.name)
            for name, text in _fields(call, schema):
                frame.append(before + syntax.fields.before + name + syntax.fields.between)
                contents.append(text)
                before = syntax.fields.after
        frame.append(before + syntax.closing)

    def _check(self, read: ParsedTurn, text: str, calls: Sequence[ToolCall]) -> None:
        """Raise BadValueError if a written turn is parsed differently."""
        if list(map(_comparable, read.calls)) != list(map(_comparable, calls)) or any(c.problem for c in read.calls):
            if not calls:
                raise _unwritable(f"the answer {text[:40]!r}", self._chat, "it would be parsed differently")
            names = " and ".join(repr(call.name) for call in calls)
            raise _unwritable(f"a call to {names}", self._chat, "it would be parsed as a different call")
        if read.prose != text.strip():
            raise _unwritable(f"the text {text[:40]!r}", self._chat, "it would be parsed differently")

    def _thought(self, prompt_ids: Sequence[int]) -> str:
        thinking = self._chat.thinking
        if thinking is Thinking.OPEN:
            on_a_line_of_its_own = self._chat.decode(prompt_ids[-4:]).endswith("\n")
            return "\n</think>\n\n" if on_a_line_of_its_own else "</think>"
        return ""

    def _ended(self, ids: list[int], end: int) -> tuple[int, ...]:
        text = self._chat.decode(ids)
        stopped = min((text.find(stop) + len(stop) for stop in self._stop if stop in text), default=None)
        if stopped is None:
            return (*ids, end)
        if stopped < len(text):
            stop = next(stop for stop in self._stop if text.endswith(stop, 0, stopped))
            raise _unwritable(f"a turn that contains {stop!r}", self._chat, "sampling.stop would end the turn there")
        return tuple(ids)

    def _end_in(self, conversation: Sequence[Message]) -> int:
        """Return the token that ends the assistant's first turn in a conversation that begins with `_ASKED`."""
        asked, whole = self._chat.open(_ASKED, []), self._chat.open(conversation, [])
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, whole, strict=False)))
        return next(token_id for token_id in whole[shared:] if token_id in self._chat.stop_token_ids)

    def _encoded(self, frame: Sequence[str], contents: Sequence[str]) -> list[int]:
        for text in (*frame, *contents):
            if not is_unicode(text):
                raise _unwritable(f"the text {text[:40]!r}", self._chat, "it contains half of a surrogate pair")
        return self._encoder.encode(frame, contents)


def _schema_of(name: str, tools: Sequence[ToolSpec]) -> ToolSpec:
    specs: list[ToolSpec] = [tool.get("function", tool) for tool in tools]
    schemas: list[ToolSpec | None] = [spec.get("parameters") for spec in specs if spec["name"] == name]
    return (schemas[0] if schemas else None) or {}


def _fields(call: ToolCall, schema: ToolSpec) -> list[tuple[str, str]]:
    """Return (name, written value) per argument, in the order of the schema. Values other than strings become JSON."""
    known: Mapping[str, Any] = schema.get("properties", {})
    names = [name for name in known if name in call.arguments] + [name for name in call.arguments if name not in known]
    return [(name, _field(call.arguments[name], known.get(name, {}), schema)) for name in names]


def _field(value: object, schema: object, root: ToolSpec) -> str:
    return value if isinstance(value, str) and _is_of_text(schema) else write_json(value, schema, root)


def _is_of_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and cast("ToolSpec", schema).get("type") in ("string", ["string"])


def _comparable(call: ToolCall) -> str:
    # Compared as text, because 1, 1.0 and True are equal in Python.
    return json.dumps([call.name, call.arguments], sort_keys=True)


def _unwritable(what: str, chat: Chat, why: str) -> BadValueError:
    return BadValueError(
        f"{what} cannot be written in the format of {chat.family}: {why}", fix="reword the text, or remove it"
    )
