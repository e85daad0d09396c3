"""The one place that turns messages and tools into token ids and a sampled turn back into calls.

Token in, token out: a conversation is opened once, and each turn is joined to the next by the renderer's bridge, which
keeps the sampled ids as they are. What tool servers write never becomes a control token: see `control_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from renderers.base import Renderer, Tokenizer

from mcprl.chat.control_text import ControlText
from mcprl.chat.probing import Traits, bridge
from mcprl.chat.reading import ParsedTurn, TurnReader
from mcprl.chat.roles import written_tools
from mcprl.chat.thinking import Thinking
from mcprl.errors import BadValueError, UnbridgeableError
from mcprl.records import Message

__all__ = ["Chat"]

ToolSpec = Mapping[str, Any]


class Chat:
    """Rendering and parsing for one model. `load_chat` makes one."""

    def __init__(
        self,
        renderer: Renderer,
        tokenizer: Tokenizer,
        *,
        family: str,
        traits: Traits,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._renderer = renderer
        self._traits = traits
        self._control_text = ControlText(tokenizer, traits.tags)
        self._reader = TurnReader(renderer, tokenizer, family, traits.thinking, stop_token_ids)
        self.tokenizer = tokenizer
        self.family = family  # the renderer's name: "chatml", "template", "qwen3", "llama-3", …
        self.stop_token_ids = tuple(stop_token_ids)  # any of these ends a turn

    @property
    def thinking(self) -> Thinking:
        """How turns begin."""
        return self._traits.thinking

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The ids of a conversation up to where the policy's first turn begins."""
        shown = [self._shown(m) for m in messages]
        specs = self._specs(tools)
        if specs and self._traits.call_example is not None:
            system = str(shown.pop(0)["content"]) if shown and shown[0]["role"] == "system" else ""
            shown.insert(0, {"role": "system", "content": written_tools(system, specs, self._traits.call_example)})
        try:
            ids = self._renderer.render_ids(
                shown,  # pyright: ignore[reportArgumentType]
                tools=specs or None,  # pyright: ignore[reportArgumentType]
                add_generation_prompt=True,
            )
        except ValueError as error:
            raise BadValueError(
                f"the messages of a task cannot be written as {self.family} writes them: {error}",
                fix="begin with an optional system message and a user message; see the renderer's words above",
            ) from error
        return tuple(ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...]:
        """The ids after `prompt_ids + sampled_ids`: the turn's close, the new messages, the next turn's opening.

        A turn that was cut, or that ended in a token the family does not end turns with, is closed here.
        """
        specs = self._specs(tools)
        shown = self._shown_results([self._shown(m) for m in messages], prompt_ids, sampled_ids)
        traits, last = self._traits, sampled_ids[-1:]
        closes: list[list[int]] = [[close] for close in traits.closes]
        if not closes or not last or last[0] in traits.closes or last[0] not in self.stop_token_ids:
            closes.insert(0, [])
        for close in closes if self._ends_once(sampled_ids) else ():
            # Second, the family is shown a turn that says nothing in place of what it refuses to close: thinking that
            # a stop token broke off, or text that its parser fails on. What follows a turn does not depend on it.
            for turn in ([*sampled_ids, *close], [*traits.thought_end, *(close or last)]):
                added = bridge(self._renderer, prompt_ids, turn, shown, specs)
                if added is not None:
                    return (*close, *added)
        raise UnbridgeableError(
            f"renderer {type(self._renderer).__name__} cannot continue a conversation without changing its tokens",
            fix="a turn ends at its first stop token, and is followed by tools and users only; else set "
            "model.renderer to chatml for a ChatML model, or to template",
        )

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> ParsedTurn:
        """A sampled turn as text and calls. Never raises: what cannot be parsed is a call with a problem."""
        return self._reader.read(prompt_ids, sampled_ids, tools)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _ends_once(self, sampled_ids: Sequence[int]) -> bool:
        return not any(token_id in self.stop_token_ids for token_id in sampled_ids[:-1])

    def _specs(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        return [self._control_text.defused(dict(tool)) for tool in tools]

    def _shown(self, message: Message) -> dict[str, Any]:
        return self._control_text.defused(dict(message)) if message["role"] == "tool" else dict(message)

    def _shown_results(
        self, messages: list[dict[str, Any]], prompt_ids: Sequence[int], sampled_ids: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Tools' results with what a family wants besides."""
        if self.family == "deepseek-v4":
            # It writes all results into one user message, but its bridge takes one: the others come as the text of it.
            return [m if place == 0 else _as_text(m) for place, m in enumerate(messages)]
        if self.family.startswith("kimi"):
            # It numbers calls and says with each result which one it answers.
            for message, call_id in zip(messages, self._call_ids(prompt_ids, sampled_ids), strict=False):
                message["tool_call_id"] = call_id
        return messages

    def _call_ids(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int]) -> list[str]:
        try:
            parsed = self._renderer.parse_response(list(sampled_ids), prompt_ids=list(prompt_ids))
        except (RecursionError, ValueError):  # As in `TurnReader`: the policy is told so in a result without a number.
            return []
        return [self._control_text.defused(call.id or "") for call in parsed.tool_calls]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_result>{message['content']}</tool_result>"}
