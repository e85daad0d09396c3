"""What renderers have in common that write a chat as roles and contents, and calls as `<tool_call>` JSON.

A renderer of this kind says only what stands around the contents. The control tokens there are laid down by their ids;
all the rest is encoded with special tokens split into plain ones, so that no message can close a turn or open another.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, RenderedTokens, Tokenizer, ToolCallParseStatus

from mcprl.chat.control_text import control_tokens
from mcprl.chat.parsing import parse_tool_calls

__all__ = ["CALL_EXAMPLE", "RoleRenderer", "Spoken", "written_tools"]

Spoken = tuple[str, str]  # a role and what it said

CALL_EXAMPLE = '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>'


def written_tools(system: str, tools: Sequence[Any], call_example: str) -> str:
    """A system text that ends with the tools on offer and how to call them."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    offer = f"You can call these tools:\n<tools>{listed}\n</tools>\nTo call one, write:\n{call_example}"
    return f"{system}\n\n{offer}" if system else offer


class RoleRenderer(ABC):
    """Messages to tokens, prefix-stable: what was rendered or sampled is never rendered again."""

    is_prefix_stable = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = control_tokens(tokenizer)
        longest_first = sorted(self._control, key=len, reverse=True)
        self._marker = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    @abstractmethod
    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        """What stands before, between and after the contents of messages of these roles: one text more than roles.

        With `opening`, the last text ends where the policy's turn begins.
        """

    def spoken(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[Spoken]:
        """Who says what, the tools being listed in the system text."""
        said = [(str(message["role"]), _message_text(message)) for message in messages]
        if not tools:
            return said
        system = said[0][1] if said and said[0][0] == "system" else ""
        return [("system", written_tools(system, tools, CALL_EXAMPLE)), *(said[1:] if system else said)]

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """A whole conversation as tokens."""
        said = self.spoken(messages, tools)
        frame = self.frame([role for role, _ in said], opening=add_generation_prompt)
        return RenderedTokens(token_ids=self._encode(frame, [text for _, text in said]))

    def render_ids(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
    ) -> RenderedTokens | None:
        """What was there, a closed turn, the new messages, and the opening of the next turn."""
        said = self.spoken(new_messages, None)
        closes = self.get_stop_token_ids()
        put_in = any(role == "assistant" for role, _ in said)
        goes_on_after_its_close = any(i in closes for i in previous_completion_ids[:-1])
        if not previous_prompt_ids or not said or put_in or goes_on_after_its_close:
            return None
        frame = self.frame(["user", "assistant", *(role for role, _ in said)], opening=True)
        added = self._encode(frame[2:], [text for _, text in said])
        if previous_completion_ids and previous_completion_ids[-1] in closes:
            added = added[added.index(closes[0]) + 1 :]
        return RenderedTokens(token_ids=[*previous_prompt_ids, *previous_completion_ids, *added])

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """The prose and the calls of a turn. `TurnReader` reads such turns itself, with the reasons of failed calls."""
        closes = self.get_stop_token_ids()
        text = self._tokenizer.decode([i for i in token_ids if i not in closes], skip_special_tokens=False)
        prose, calls = parse_tool_calls(text)
        ok, failed = ToolCallParseStatus.OK, ToolCallParseStatus.MALFORMED_STRUCTURE
        return ParsedResponse(
            content=prose,
            tool_calls=[
                ParsedToolCall("", call.name, dict(call.arguments), status=failed if call.problem else ok)
                for call in calls
            ],
        )

    def get_stop_token_ids(self) -> list[int]:
        """The token that closes a turn, where the roles are told apart by tokens at all."""
        closing = self.frame(["user", "assistant"], opening=False)[-1]
        return [self._control[text] for text in self._marker.findall(closing)[:1]]

    def _encode(self, frame: Sequence[str], contents: Sequence[str]) -> list[int]:
        """The tokens of contents and what stands around them, each run of plain text in one piece."""
        ids: list[int] = []
        plain = ""
        for text, content in zip_longest(frame, contents, fillvalue=""):
            before, *others = self._marker.split(text)
            plain += before
            for marker, after in zip(others[::2], others[1::2], strict=True):
                ids.extend(chain(self._encode_plain(plain), [self._control[marker]]))
                plain = after
            plain += content
        return [*ids, *self._encode_plain(plain)]

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


def _message_text(message: Mapping[str, Any]) -> str:
    functions: list[Any] = [call["function"] for call in message.get("tool_calls", ())]
    calls = [
        json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
        for function in functions
    ]
    written = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return "\n".join([text for text in [str(message["content"])] if text] + written)
