"""The one place that turns messages and tools into token ids and a sampled turn back into calls.

Token in, token out: a conversation is opened once, and each turn is joined to the next by the renderer's bridge, which
keeps the sampled ids as they are. A renderer that cannot promise that is refused by name.

What tool servers write never becomes a control token: where their text spells one, such as `<|im_end|>`, it is broken
up (`< |im_end|>`), because the renderers of most families would encode it as the token itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from renderers import CustomRendererConfig, RendererConfig, create_renderer  # pyright: ignore[reportUnknownVariableType]
from renderers.base import ParsedToolCall, Renderer, Tokenizer, ToolCallParseStatus
from transformers import AutoTokenizer

from mcprl.chat.chatml import UnusableToolCall
from mcprl.chat.parsing import checked_call, unusable_call
from mcprl.errors import BadValueError, UnbridgeableError
from mcprl.records import Message, ToolCall

__all__ = ["Chat", "ParsedTurn", "load_chat"]

ToolSpec = Mapping[str, Any]

# Some families mark up calls and thinking with tokens that their tokenizers do not count as special.
_MARKUP = re.compile(r"</?(tool|think)\w*>")


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """A sampled turn as text and calls. `text` is the whole turn, `prose` what is left without thinking and calls."""

    text: str
    prose: str
    calls: tuple[ToolCall, ...]


class Chat:
    """Rendering and parsing for one model."""

    def __init__(self, renderer: Renderer, tokenizer: Tokenizer) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._control_text = _control_text(tokenizer)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn."""
        return tuple(self._renderer.get_stop_token_ids())

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The ids of a conversation up to where the policy's first turn begins."""
        ids = self._renderer.render_ids(
            [self._plain(m) for m in messages],  # pyright: ignore[reportArgumentType]
            tools=[self._defused(dict(t)) for t in tools] or None,
            add_generation_prompt=True,
        )
        return tuple(ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...]:
        """The ids after `prompt_ids + sampled_ids`: the turn's close, the new messages, the next turn's opening."""
        before = [*prompt_ids, *sampled_ids]
        bridged = self._renderer.bridge_to_next_turn(
            list(prompt_ids),
            list(sampled_ids),
            [self._plain(m) for m in messages],  # pyright: ignore[reportArgumentType]
            tools=[self._defused(dict(t)) for t in tools] or None,
        )
        if bridged is None or bridged.token_ids[: len(before)] != before:
            raise UnbridgeableError(
                f"renderer {type(self._renderer).__name__} cannot continue a conversation without changing its tokens",
                fix="set model.renderer to the model's family (qwen3, llama-3, …), or to chatml for a ChatML model",
            )
        return tuple(bridged.token_ids[len(before) :])

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int]) -> ParsedTurn:
        """A sampled turn as text and calls. Never raises: what cannot be parsed is a call with a problem."""
        text = self.decode(sampled_ids)
        try:
            parsed = self._renderer.parse_response(list(sampled_ids), prompt_ids=list(prompt_ids))
        except (RecursionError, ValueError):
            # The families' own parsers decode JSON, which fails this way on absurd nesting and endless numbers.
            return ParsedTurn(text, "", (unusable_call("the turn cannot be parsed"),))
        return ParsedTurn(text, parsed.content.strip(), tuple(_to_call(call) for call in parsed.tool_calls))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _plain(self, message: Message) -> dict[str, Any]:
        return self._defused(dict(message)) if message["role"] == "tool" else dict(message)

    def _defused(self, value: Any) -> Any:
        """The same value with every text in it broken up where it spells a control token."""
        if isinstance(value, str):
            return self._control_text.sub(lambda found: f"{found[0][0]} {found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {key: self._defused(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._defused(inner) for inner in cast("list[Any]", value)]
        return value


def load_chat(model: str, renderer: str) -> Chat:
    """The chat of a model: its tokenizer and the renderer of that name (`auto`: by the model's name)."""
    try:
        tokenizer = cast("Tokenizer", AutoTokenizer.from_pretrained(model))  # pyright: ignore[reportUnknownMemberType]
    except (OSError, ValueError) as error:
        raise BadValueError(
            f"model.path is {model!r}, where no tokenizer can be loaded: {str(error).splitlines()[0]}",
            fix="give the folder of a model (./…, ../… or /…), or its name on the hub",
        ) from error
    if renderer == "chatml":
        config: Any = CustomRendererConfig(import_path="mcprl.chat.chatml.ChatmlRenderer")
    else:
        try:
            config = TypeAdapter[Any](RendererConfig).validate_python({"name": renderer})
        except ValidationError as error:
            known = ", ".join(re.findall(r"'([\w.-]+)'", str(error.errors()[0].get("ctx", {}).get("expected_tags"))))
            raise BadValueError(
                f"model.renderer is {renderer!r}, which is none of chatml, {known}",
                fix="name the model's family, or write auto",
            ) from error
    return Chat(create_renderer(tokenizer, config), tokenizer)


def _control_text(tokenizer: Tokenizer) -> re.Pattern[str]:
    """What spells a token that structures a chat."""
    added: Mapping[int, Any] = cast("Any", tokenizer).added_tokens_decoder
    texts = [str(token.content) for token in added.values() if token.special or _MARKUP.fullmatch(token.content)]
    # One character stays in front of the gap, and a text of one character could not be broken up.
    return re.compile(
        "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if len(text) > 1) or r"(?!)"
    )


def _to_call(parsed: ParsedToolCall) -> ToolCall:
    name = parsed.name or ""
    if isinstance(parsed, UnusableToolCall):
        return unusable_call(parsed.problem, name)
    if parsed.status is not ToolCallParseStatus.OK:
        return unusable_call(f"the call cannot be used: {parsed.status.value.replace('_', ' ')}", name)
    if not isinstance(parsed.arguments, dict):
        return unusable_call('"arguments" must be a JSON object', name)
    return checked_call(name, parsed.arguments)
