"""A renderer for ChatML models that `renderers` does not know, SmolLM2 among them.

Each message is `<|im_start|>role\\n…<|im_end|>\\n`, a tool's result is a message of role `tool`, a call is written as
`<tool_call>` JSON. The text of messages is encoded with special tokens split into plain ones, so that nothing a tool
returns can close a turn or open another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from renderers.base import (
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    Tokenizer,
    ToolCallParseStatus,
    trim_to_turn_close,
)
from renderers.configs import BaseRendererConfig

from mcprl.chat.parsing import parse_tool_calls
from mcprl.errors import BadValueError

__all__ = ["ChatmlRenderer", "ChatmlRendererConfig", "UnusableToolCall"]

_START, _END = "<|im_start|>", "<|im_end|>"
_TOOLS_BEFORE = "You can call these tools:\n<tools>"
_TOOLS_AFTER = '\n</tools>\nTo call one, write:\n<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>'


class ChatmlRendererConfig(BaseRendererConfig):
    """No options: one way to write ChatML."""

    name: Literal["chatml"] = "chatml"


@dataclass
class UnusableToolCall(ParsedToolCall):
    """A call that failed, with the reason for the policy to read: `renderers` has a place for its kind only."""

    problem: str = ""


class ChatmlRenderer:
    """Messages to tokens and back, prefix-stable: what was rendered or sampled is never rendered again."""

    config_class: ClassVar[type[BaseRendererConfig]] = ChatmlRendererConfig
    is_prefix_stable = True

    def __init__(self, tokenizer: Tokenizer, config: ChatmlRendererConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self.config = config or ChatmlRendererConfig()
        self._start, self._end = (self._special(token) for token in (_START, _END))

    def render(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """A whole conversation as tokens, each with the index of its message (−1: no message's own)."""
        rendered = RenderedTokens(message_roles=[str(m["role"]) for m in messages])
        conversation = list(enumerate(messages))
        if tools:
            system = str(messages[0]["content"]) if messages and messages[0]["role"] == "system" else ""
            self._append(rendered, "system", _system_text(system, tools), 0 if system else -1)
            conversation = conversation[1:] if system else conversation
        for index, message in conversation:
            self._append(rendered, str(message["role"]), _message_text(message), index)
        if add_generation_prompt:
            self._append_opening(rendered)
        return rendered

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
        if not previous_prompt_ids or not new_messages or any(m["role"] == "assistant" for m in new_messages):
            return None
        previous = trim_to_turn_close(
            previous_prompt_ids, previous_completion_ids, {self._end}, synthesize_close=self._end
        )
        if previous is None:
            return None
        rendered = RenderedTokens(
            token_ids=previous,
            message_indices=[-1] * len(previous),
            message_roles=[str(m["role"]) for m in new_messages],
        )
        self._extend(rendered, self._encode("\n"), -1)
        for index, message in enumerate(new_messages):
            self._append(rendered, str(message["role"]), _message_text(message), index)
        self._append_opening(rendered)
        return rendered

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: Sequence[Any] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """The prose and the calls of a turn. Failed calls are in the list, with their reason."""
        text = self._tokenizer.decode([i for i in token_ids if i != self._end], skip_special_tokens=False)
        prose, calls = parse_tool_calls(text)
        return ParsedResponse(
            content=prose,
            tool_calls=[
                ParsedToolCall(raw="", name=call.name, arguments=dict(call.arguments))
                if call.problem is None
                else UnusableToolCall(
                    raw="",
                    name=call.name or None,
                    status=ToolCallParseStatus.MALFORMED_STRUCTURE,
                    problem=call.problem,
                )
                for call in calls
            ],
        )

    def get_stop_token_ids(self) -> list[int]:
        return [self._end]

    def _special(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        if not isinstance(token_id, int) or token_id == self._tokenizer.unk_token_id:
            raise BadValueError(
                f"model.renderer is chatml, but the tokenizer has no token {token!r}",
                fix="set model.renderer to the model's family, or to auto",
            )
        return token_id

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _append(self, rendered: RenderedTokens, role: str, text: str, index: int) -> None:
        ids = [self._start, *self._encode(f"{role}\n{text}"), self._end, *self._encode("\n")]
        self._extend(rendered, ids, index)

    def _append_opening(self, rendered: RenderedTokens) -> None:
        self._extend(rendered, [self._start, *self._encode("assistant\n")], -1)

    @staticmethod
    def _extend(rendered: RenderedTokens, ids: list[int], index: int) -> None:
        rendered.token_ids.extend(ids)
        rendered.message_indices.extend([index] * len(ids))


def _system_text(system: str, tools: Sequence[Any]) -> str:
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (f"{system}\n\n" if system else "") + _TOOLS_BEFORE + listed + _TOOLS_AFTER


def _message_text(message: Mapping[str, Any]) -> str:
    functions: list[Any] = [call["function"] for call in message.get("tool_calls", ())]
    calls = [
        json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
        for function in functions
    ]
    written = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return "\n".join([text for text in [str(message["content"])] if text] + written)
