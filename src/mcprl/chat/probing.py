"""What a family does with a chat, found by asking its renderer to render small ones.

`renderers` has one class a family, and they share no table of markers. What `Chat` needs to know about them shows in
what they write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from renderers.base import Renderer, Tokenizer

from mcprl.chat.thinking import Thinking
from mcprl.errors import BadValueError, UnbridgeableError

__all__ = ["Traits", "bridge", "find_traits"]

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"ARGUMENT": {"type": "string"}}},
    },
}
_SYSTEM = {"role": "system", "content": "Be brief."}
_USER = {"role": "user", "content": "Hello."}
_RESULT = {"role": "tool", "name": "probe_tool", "content": "Seen."}
_ANSWER = {"role": "assistant", "content": "Word."}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "functions.TOOL:0", "function": {"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}}
    ],
}
_OPENED_THINKING = re.compile(r"(?:<think[^<>/]*>|<\|channel>thought|<\|content_thinking\|>)\s*$")
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What `Chat` goes by. Of Qwen3, with thinking:

    Traits(
        thinking=Thinking.OPTIONAL,
        closes=(151645,),          # <|im_end|>: what the family ends turns with, first the one it ends a cut turn with
        thought_end=(),            # what it puts before that where the prompt had opened thinking: </think>
        tags=("<|im_start|>", …),  # how messages are framed, be it by tokens or in plain text
        call_example=None,         # how a call is written, of a family whose template does not list the tools
    )
    """

    thinking: Thinking
    closes: tuple[int, ...]
    thought_end: tuple[int, ...]
    tags: tuple[str, ...]
    call_example: str | None


def bridge(
    renderer: Renderer,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    messages: Sequence[Any],
    tools: Sequence[Any],
) -> tuple[int, ...] | None:
    """What the renderer puts after a turn, or None where it refuses or would change what is there."""
    before = [*prompt_ids, *completion_ids]
    try:
        bridged = renderer.bridge_to_next_turn(
            list(prompt_ids), list(completion_ids), list(messages), tools=list(tools) or None
        )
    except (RecursionError, ValueError):
        # Some families parse the turn here, and their JSON decoders give up on absurd nesting and endless numbers.
        return None
    if bridged is None or bridged.token_ids[: len(before)] != before:
        return None
    return tuple(bridged.token_ids[len(before) :])


def find_traits(renderer: Renderer, tokenizer: Tokenizer, *, thinks_unasked: bool) -> Traits:
    """The traits of a renderer. `thinks_unasked`: the model may open thinking itself."""
    prompt = _rendered(renderer, [_SYSTEM, _USER], tools=[_TOOL], opening=True)
    word = tokenizer.encode("word", add_special_tokens=False)
    cut = bridge(renderer, prompt, word, [_USER], [_TOOL])
    if cut is None:
        raise UnbridgeableError(
            f"renderer {type(renderer).__name__} cannot continue a conversation without changing its tokens",
            fix="set model.renderer to the model's family (qwen3, llama-3, …), to chatml for a ChatML model, "
            "or to template",
        )
    stops = renderer.get_stop_token_ids()
    ended = [place for place, token_id in enumerate(cut) if token_id in stops][:1]
    asked = _rendered(renderer, [_USER], tools=[_TOOL])
    written = _rendered(renderer, [_USER, _CALL, _RESULT, _ANSWER, _USER], tools=[_TOOL])[len(asked) :]
    closes = tuple(dict.fromkeys([*(cut[place] for place in ended), *(i for i in stops if i in written)]))
    thought_end = cut[: ended[0]] if ended else ()
    answered = _answered(renderer, prompt, [*word, *thought_end], closes)
    plain = _rendered(renderer, [_SYSTEM, _USER], opening=True)
    framing = "\n".join(_decoded(tokenizer, ids) for ids in (plain, cut, answered))
    opened = _decoded(tokenizer, prompt)
    if _is_open(opened) != _is_open(framing):
        raise BadValueError(
            "model.thinking is on, and this family opens thinking itself after a tool's result, but not before",
            fix="set model.thinking to false",
        )
    return Traits(
        thinking=Thinking.OPEN if _is_open(opened) else Thinking.OPTIONAL if thinks_unasked else Thinking.NONE,
        closes=closes,
        thought_end=thought_end,
        tags=tuple(sorted(set(_TAG.findall(framing)))),
        call_example=None if "probe_tool" in opened else _call_example(renderer, tokenizer, closes),
    )


def _answered(renderer: Renderer, prompt: Sequence[int], turn: Sequence[int], closes: Sequence[int]) -> tuple[int, ...]:
    for close in [[close] for close in closes] or [[]]:
        answered = bridge(renderer, prompt, [*turn, *close], [_RESULT], [_TOOL])
        if answered is not None:
            return answered
    raise UnbridgeableError(
        f"renderer {type(renderer).__name__} cannot show a tool's result",
        fix="set model.renderer to the model's family, to chatml for a ChatML model, or to template",
    )


def _call_example(renderer: Renderer, tokenizer: Tokenizer, closes: Sequence[int]) -> str:
    asked = _rendered(renderer, [_USER], opening=True)
    called = _rendered(renderer, [_USER, _CALL])
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(asked, called, strict=False)))
    example = called[shared:]
    return _decoded(tokenizer, [token_id for token_id in example if token_id not in closes]).strip()


def _is_open(prompt: str) -> bool:
    return _OPENED_THINKING.search(prompt) is not None


def _rendered(
    renderer: Renderer, messages: Sequence[Any], *, tools: Sequence[Any] = (), opening: bool = False
) -> list[int]:
    return renderer.render_ids(list(messages), tools=list(tools) or None, add_generation_prompt=opening)


def _decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))
