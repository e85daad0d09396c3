"""Turns written for the policy, just as it would have to sample them: the other direction of `reading`.

A turn that thinks has an empty thought, written as the family writes one. It ends in the token that the family ends
such a turn with, or at the first text that the sampler stops at. What was written is read back at once: a turn that
would be read as anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

from mcprl.chat.argument_json import write_json
from mcprl.chat.call_syntax import CALL_SYNTAXES
from mcprl.chat.control_text import control_tokens
from mcprl.chat.rendering import Chat
from mcprl.chat.thinking import Thinking
from mcprl.errors import BadValueError, NoCallSyntaxError
from mcprl.records import Message, ToolCall

__all__ = ["TurnWriter"]

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
    """Writes the turns of one model. `stop`: texts that end a turn, as the sampler is told."""

    def __init__(self, chat: Chat, *, stop: Sequence[str] = ()) -> None:
        if chat.family not in CALL_SYNTAXES:
            raise NoCallSyntaxError(
                f"calls are to be written, but how {chat.family} writes them is not known",
                fix=f"set algorithm.warm_start.weight to 0, or train a model of one of these families: "
                f"{', '.join(CALL_SYNTAXES)}",
            )
        self._chat = chat
        self._syntax = CALL_SYNTAXES[chat.family]
        self._stop = tuple(stop)
        self._control = control_tokens(chat.tokenizer)
        longest_first = sorted(self._control, key=len, reverse=True)
        self._marker = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self._end_of_call = self._end_in(_CALLED)
        self._end_of_answer = self._end_in(_ANSWERED)

    def write_call(self, prompt_ids: Sequence[int], call: ToolCall, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The ids of a turn that makes this call. Raises BadValueError where the family cannot write it."""
        syntax = self._syntax
        schema = _schema_of(call.name, tools)
        frame = [self._thought(prompt_ids) + syntax.section[0] + syntax.before_name]
        before = syntax.after_name
        if syntax.fields is None:
            is_json = syntax.before_name.endswith('"')
            contents = [json.dumps(call.name, ensure_ascii=False)[1:-1] if is_json else call.name]
            if syntax.numbered:  # Over the whole conversation.
                contents[0] += f":{self._chat.decode(prompt_ids).count(syntax.before_name)}"
            frame.append(before)
            contents.append(write_json(call.arguments, schema, schema))
            before = ""
        else:
            contents = [call.name]
            for name, text in _fields(call, schema):
                frame.append(before + syntax.fields.before + name + syntax.fields.between)
                contents.append(text)
                before = syntax.fields.after
        frame.append(before + syntax.closing + syntax.section[1])
        ids = self._ended(self._encoded(frame, contents), self._end_of_call)
        read = self._chat.parse(prompt_ids, ids, tools).calls
        if len(read) != 1 or read[0].problem is not None or _comparable(read[0]) != _comparable(call):
            raise _unwritable(f"the call of {call.name!r}", self._chat, "it is read back as another one")
        return ids

    def write_answer(self, prompt_ids: Sequence[int], answer: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The ids of a turn that says this. Raises BadValueError where it would be read as something else."""
        ids = self._ended(self._encoded([self._thought(prompt_ids), ""], [answer]), self._end_of_answer)
        read = self._chat.parse(prompt_ids, ids, tools)
        if read.calls or read.prose != answer.strip():
            raise _unwritable(f"the answer {answer[:40]!r}", self._chat, "it is read back as something else")
        return ids

    def _thought(self, prompt_ids: Sequence[int]) -> str:
        thinking = self._chat.thinking
        if thinking is Thinking.OPEN:
            on_a_line_of_its_own = self._chat.decode(prompt_ids[-4:]).endswith("\n")
            return "\n</think>\n\n" if on_a_line_of_its_own else "</think>"
        return "<think></think>\n" if thinking is Thinking.OPTIONAL and self._syntax.always_thinks else ""

    def _ended(self, ids: list[int], end: int) -> tuple[int, ...]:
        text = self._chat.decode(ids)
        stopped = min((text.find(stop) + len(stop) for stop in self._stop if stop in text), default=None)
        if stopped is None:
            return (*ids, end)
        if stopped < len(text):
            stop = next(stop for stop in self._stop if text.endswith(stop, 0, stopped))
            raise _unwritable(f"a turn with {stop!r} in it", self._chat, "sampling.stop ends it there")
        return tuple(ids)

    def _end_in(self, conversation: Sequence[Message]) -> int:
        """The token that ends the turn after the question in a conversation."""
        asked, whole = self._chat.open(_ASKED, []), self._chat.open(conversation, [])
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, whole, strict=False)))
        return next(token_id for token_id in whole[shared:] if token_id in self._chat.stop_token_ids)

    def _encoded(self, frame: Sequence[str], contents: Sequence[str]) -> list[int]:
        """The tokens of contents and what stands around them: markers there by their ids, all else as plain text."""
        ids: list[int] = []
        plain = ""
        for text, content in zip(frame, [*contents, ""], strict=True):
            before, *others = self._marker.split(text)
            plain += before
            for marker, after in zip(others[::2], others[1::2], strict=True):
                ids += [*self._encoded_plain(plain), self._control[marker]]
                plain = after
            plain += content
        return ids + self._encoded_plain(plain)

    def _encoded_plain(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _unwritable(f"{text[:40]!r}", self._chat, "it holds half a character") from error
        return self._chat.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) if text else []


def _schema_of(name: str, tools: Sequence[ToolSpec]) -> ToolSpec:
    specs: list[ToolSpec] = [tool.get("function", tool) for tool in tools]
    schemas: list[ToolSpec | None] = [spec.get("parameters") for spec in specs if spec["name"] == name]
    return (schemas[0] if schemas else None) or {}


def _fields(call: ToolCall, schema: ToolSpec) -> list[tuple[str, str]]:
    """The arguments one by one, by the order of the schema: texts as they are, all else as JSON."""
    known: Mapping[str, Any] = schema.get("properties", {})
    names = [name for name in known if name in call.arguments] + [name for name in call.arguments if name not in known]
    return [(name, _field(call.arguments[name], known.get(name, {}), schema)) for name in names]


def _field(value: object, schema: object, root: ToolSpec) -> str:
    return value if isinstance(value, str) and _is_of_text(schema) else write_json(value, schema, root)


def _is_of_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and cast("ToolSpec", schema).get("type") in ("string", ["string"])


def _comparable(call: ToolCall) -> str:
    # As text, since 1, 1.0 and True are equal in Python.
    return json.dumps([call.name, call.arguments], sort_keys=True)


def _unwritable(what: str, chat: Chat, why: str) -> BadValueError:
    return BadValueError(
        f"{what} cannot be written as a turn of {chat.family}: {why}",
        fix="write it in another way, or leave it out",
    )
