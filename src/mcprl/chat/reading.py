"""A sampled turn, as token ids, read into prose and calls.

Families that write a call as JSON are read from their text by parsers of our own. The others mark calls up with tokens
of their own and are read by `renderers`, family by family; what it says about a call is put into our words. Nothing
that a policy can sample makes the reading fail: what cannot be read is a call with a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renderers.base import ParsedToolCall, Renderer, Tokenizer, ToolCallParseStatus

from mcprl.chat.llama_calls import parse_llama_calls
from mcprl.chat.parsing import (
    CALL_OPENING,
    MAX_CALLS,
    checked_call,
    excerpt,
    parse_tool_calls,
    read_value,
    unusable_call,
)
from mcprl.chat.problems import Problem
from mcprl.chat.tagged_calls import is_whole
from mcprl.chat.thinking import Thinking, split_thinking
from mcprl.records import ToolCall

__all__ = ["JSON_FAMILIES", "ParsedTurn", "TurnReader", "read_text"]

ToolSpec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A sampled turn as text and calls. `text` is the whole turn, `prose` what is left without thinking and calls.

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
    """How a family writes calls as text: `opening` is what a call begins with wherever it stands, if anything."""

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
    """Reads the turns of one model."""

    def __init__(
        self,
        renderer: Renderer,
        tokenizer: Tokenizer,
        family: str,
        thinking: Thinking,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._family = family
        self._thinking = thinking
        self._stop_texts = {token_id: self._decode([token_id]) for token_id in stop_token_ids}

    def read(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> ParsedTurn:
        """The turn that was sampled after `prompt_ids`, with `tools` on offer. The token that ended it is no prose."""
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
        # Some families close a call with the token that stops the turn; what else a model may stop at, the renderer
        # would take for text.
        if ids and ids[-1] in self._stop_texts and ids[-1] not in self._renderer.get_stop_token_ids():
            ids.pop()
        try:
            parsed = self._renderer.parse_response(
                ids,
                tools=[dict(tool) for tool in tools] or None,  # pyright: ignore[reportArgumentType]
                prompt_ids=list(prompt_ids),
            )
        except (RecursionError, ValueError):
            # The families' parsers decode JSON, which fails this way on absurd nesting and on endless numbers.
            return "", (unusable_call(Problem.UNREADABLE.say()),)
        calls = [_translated(call, self._family) for call in parsed.tool_calls[:MAX_CALLS]]
        if len(parsed.tool_calls) > MAX_CALLS:
            calls.append(unusable_call(Problem.TOO_MANY.say(limit=MAX_CALLS)))
        return parsed.content.strip(), tuple(calls)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def read_text(text: str, family: str, thinking: Thinking) -> tuple[str, tuple[ToolCall, ...]]:
    """The prose and the calls of a turn's text, of a family that writes calls as JSON.

    >>> read_text("<think>Easy.</think>\\n\\nIt is Lima.", "qwen3", Thinking.OPTIONAL)
    ('It is Lima.', ())
    """
    written = JSON_FAMILIES[family]
    _, rest = split_thinking(text, thinking, call_opening=written.opening)
    return written.parse(rest)


def _translated(parsed: ParsedToolCall, family: str) -> ToolCall:
    """A call as `renderers` read it, in our words."""
    name, arguments = parsed.name or "", parsed.arguments
    if (problem := _STATUSES.get(parsed.status)) is not None:
        return unusable_call(problem, name)
    if not is_whole(family, parsed.raw):
        return unusable_call(Problem.MALFORMED.say(), name)
    # An unknown tool is answered where all are, with the names that are on offer. Likewise a value that is no JSON,
    # among arguments that are each written as text: it is a text then, and the tool's schema says whether it may be.
    if isinstance(arguments, dict):
        return checked_call(name, arguments)
    if parsed.status is ToolCallParseStatus.INVALID_JSON:
        return unusable_call(_what_is_wrong_with(arguments), name)
    return unusable_call(Problem.ARGUMENTS_NOT_AN_OBJECT.say(where=""), name)


def _what_is_wrong_with(arguments: str | None) -> str:
    if arguments is None:  # The family has a syntax of its own for them.
        return Problem.MALFORMED.say()
    read = read_value(arguments, 0)
    if isinstance(read, str):
        return read
    return Problem.TEXT_AFTER_JSON.say(found=excerpt(arguments, read[1]), allowed="the end of the call")
