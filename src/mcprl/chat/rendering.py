"""Converts messages and tools to token ids, and a sampled turn back to calls.

The prompt is rendered once. After each turn, the renderer's bridge appends the tokens of the new messages and never
changes sampled ids. Text from tool servers never becomes a control token: see `ControlText`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest
from typing import Any, cast

from renderers.base import RenderedTokens, Renderer, Tokenizer

from mcprl.chat.parsing import ParsedTurn, Thinking, TurnReader
from mcprl.errors import BadValueError, UnbridgeableError
from mcprl.records import Message

_TAGS = r"</?(?:tool|think)\w*>"
_BRACKETS = {"Ps", "Pe", "Pi", "Pf"}  # Unicode's categories of opening and closing marks
_BARS = "<>|｜"


class ControlText:
    """Breaks up control tokens in text. `tags` are further strings that frame messages."""

    def __init__(self, tokenizer: Tokenizer, tags: Collection[str]) -> None:
        self._tokenizer = tokenizer
        tokens = control_tokens(tokenizer)
        self._ids = frozenset(tokens.values())
        texts = [text.strip() for text in (*tokens, *tags)]
        # Some tokenizers match added tokens in lower case.
        self._pattern = re.compile("|".join([_TAGS, *([_any_of(texts)] if texts else [])]), re.IGNORECASE)

    def defused(self, value: Any) -> Any:
        """Return the value with a space inserted into every control token in its strings."""
        if isinstance(value, str):
            return self._defused_text(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.defused(key): self.defused(inner) for key, inner in items}
        if isinstance(value, list | tuple):
            return [self.defused(inner) for inner in cast("Iterable[Any]", value)]
        return value

    def _defused_text(self, text: str) -> str:
        # JSON escapes such as \ud800 give lone surrogates, which no tokenizer accepts.
        text = text.encode(errors="replace").decode()
        if text and unicodedata.category(text[0]).startswith("M"):
            text = f" {text}"  # a combining mark would change the tag before the text
        broken = self._broken_up(text)
        if broken.isascii():
            return broken
        # A tokenizer that normalises text may find a marker in lookalike characters (`＜think＞`), so check its output.
        # If it does, the policy gets the text in NFKC form or, as a last resort, in ASCII.
        for lookalike_free in (unicodedata.normalize("NFKC", text), text.encode("ascii", "replace").decode()):
            if self._ids.isdisjoint(self._tokenizer.encode(broken, add_special_tokens=False)):
                break
            broken = self._broken_up(lookalike_free)
        return broken

    def _broken_up(self, text: str) -> str:
        found = 1
        while found:  # markers can overlap, and one pass then leaves one intact
            text, found = self._pattern.subn(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the control tokens that structure chats, by their text."""
    added: Mapping[int, Any] = cast("Any", tokenizer).added_tokens_decoder
    texts = {
        str(token.content): token_id
        for token_id, token in added.items()
        if token.special or any(sign in _BARS or unicodedata.category(sign) in _BRACKETS for sign in token.content)
    }
    # `ControlText` breaks a token up with a space after its first character.
    return {text: token_id for text, token_id in texts.items() if text.strip()[1:] and not text.strip()[1].isspace()}


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches any of the texts. Common prefixes are shared: there may be thousands of texts."""
    tails: dict[str, list[str]] = {}
    for text in texts:
        if not text:
            return ""  # the shortest text is enough: breaking it up breaks up the longer ones
        tails.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(head) + _any_of(rest) for head, rest in sorted(tails.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


Spoken = tuple[str, str]  # a role and its text

CALL_EXAMPLE = '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>'


def written_tools(system: str, tools: Sequence[Any], call_example: str) -> str:
    """Return the system message, followed by the available tools and how to call them."""
    listed = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    offer = f"You can call these tools:\n<tools>{listed}\n</tools>\nTo call one, write:\n{call_example}"
    return f"{system}\n\n{offer}" if system else offer


class FrameEncoder:
    """Encodes message contents and the frame, the text around them. Only the frame can yield control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.control = control_tokens(tokenizer)
        longest_first = sorted(self.control, key=len, reverse=True)
        self.marker = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode(self, frame: Sequence[str], contents: Sequence[str]) -> list[int]:
        """Encode the first string of the frame, the first content, and so on.

        Plain text between two control tokens is encoded in one piece.
        """
        ids: list[int] = []
        plain = ""
        for text, content in zip_longest(frame, contents, fillvalue=""):
            before, *others = self.marker.split(text)
            plain += before
            for marker, after in zip(others[::2], others[1::2], strict=True):
                ids += [*self._encode_plain(plain), self.control[marker]]
                plain = after
            plain += content
        return ids + self._encode_plain(plain)

    def _encode_plain(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) if text else []


class RoleRenderer(ABC):
    """Renders messages as tokens. It only appends: tokens that were rendered or sampled are never rendered again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoder = FrameEncoder(tokenizer)

    @abstractmethod
    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        """Return the strings before, between and after the contents of messages with these roles: one more string
        than there are roles.

        With `opening`, the last string ends where the policy's turn begins.
        """

    def spoken(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[Spoken]:
        """Return the roles and contents of messages, with the tools listed in the system message."""
        said = [(str(message["role"]), _message_text(message)) for message in messages]
        if not tools:
            return said
        system = said[0][1] if said and said[0][0] == "system" else ""
        return [("system", written_tools(system, tools, CALL_EXAMPLE)), *(said[1:] if system else said)]

    def render_ids(
        self, messages: Sequence[Any], *, tools: Sequence[Any] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        """Render a whole conversation."""
        said = self.spoken(messages, tools)
        frame = self.frame([role for role, _ in said], opening=add_generation_prompt)
        return self._encoder.encode(frame, [text for _, text in said])

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
    ) -> RenderedTokens | None:
        """Append the end of the turn if it is missing, the new messages, and the start of the next turn.

        Returns None if the conversation cannot be continued this way.
        """
        said = self.spoken(new_messages, None)
        closes = self.get_stop_token_ids()
        has_turn = any(role == "assistant" for role, _ in said)
        continues_after_its_close = any(i in closes for i in previous_completion_ids[:-1])
        if not previous_prompt_ids or not said or has_turn or continues_after_its_close:
            return None
        frame = self.frame(["user", "assistant", *(role for role, _ in said)], opening=True)
        added = self._encoder.encode(frame[2:], [text for _, text in said])
        if previous_completion_ids and previous_completion_ids[-1] in closes:
            added = added[added.index(closes[0]) + 1 :]
        return RenderedTokens(token_ids=[*previous_prompt_ids, *previous_completion_ids, *added])

    def get_stop_token_ids(self) -> list[int]:
        """Return the token that closes a turn, or an empty list if turns do not end with a control token."""
        closing = self.frame(["user", "assistant"], opening=False)[-1]
        return [self._encoder.control[text] for text in self._encoder.marker.findall(closing)[:1]]


def _message_text(message: Mapping[str, Any]) -> str:
    functions: list[Any] = [call["function"] for call in message.get("tool_calls", ())]
    calls = [
        json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
        for function in functions
    ]
    written = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return "\n".join([text for text in [str(message["content"])] if text] + written)


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
    """How a model family writes turns. Example: Qwen3 with thinking.

    Traits(
        thinking=Thinking.OPTIONAL,
        closes=(151645,),          # <|im_end|>: the tokens that end turns; the first is used to end a truncated turn
        thought_end=(),            # inserted before that if the prompt has opened thinking: </think>
        tags=("<|im_start|>", …),  # the texts that frame messages, as tokens or plain text
        call_example=None,         # an example call, if the family's template does not list the tools
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
    """Return the ids that the renderer appends after a turn, or None if it refuses or would change earlier ids."""
    before = [*prompt_ids, *completion_ids]
    try:
        bridged = renderer.bridge_to_next_turn(
            list(prompt_ids), list(completion_ids), list(messages), tools=list(tools) or None
        )
    except (RecursionError, ValueError):
        # Some families parse the turn here. Their JSON decoders fail on deep nesting and very long numbers.
        return None
    if bridged is None or bridged.token_ids[: len(before)] != before:
        return None
    return tuple(bridged.token_ids[len(before) :])


def find_traits(renderer: Renderer, tokenizer: Tokenizer, *, thinks_unasked: bool) -> Traits:
    """Find the traits of a renderer by probing it. `thinks_unasked`: the model may open thinking itself."""
    prompt = _rendered(renderer, [_SYSTEM, _USER], tools=[_TOOL], opening=True)
    word = tokenizer.encode("word", add_special_tokens=False)
    cut = bridge(renderer, prompt, word, [_USER], [_TOOL])
    if cut is None:
        raise UnbridgeableError(
            f"renderer {type(renderer).__name__} cannot continue a conversation without changing earlier tokens",
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
            "model.thinking is on, but this model family's template starts thinking only after a tool result",
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
        f"renderer {type(renderer).__name__} cannot render a tool's result",
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


ToolSpec = Mapping[str, Any]


class Chat:
    """Renders prompts and parses turns for one model. Created by `load_chat`."""

    def __init__(
        self, renderer: Renderer, tokenizer: Tokenizer, *, family: str, traits: Traits, stop_token_ids: Sequence[int]
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
        """Return whether turns begin with thinking."""
        return self._traits.thinking

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the ids of a conversation up to the start of the policy's first turn."""
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
                f"the messages of a task cannot be rendered by {self.family}: {error}",
                fix="start with an optional system message and a user message; the renderer's own error is above",
            ) from error
        return tuple(ids)

    def extend(
        self,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...]:
        """Return the ids that follow `prompt_ids + sampled_ids`: the new messages and the start of the next turn.

        If the turn was truncated, or stopped at a token that is not the family's end-of-turn token, the returned ids
        begin with the end of that turn.
        """
        specs = self._specs(tools)
        # A model may have written what the user says, so its text must not close a turn either.
        defused = [self._control_text.defused(dict(message)) for message in messages]
        shown = self._shown_results(defused, prompt_ids, sampled_ids)
        traits, last = self._traits, sampled_ids[-1:]
        closes: list[list[int]] = [[close] for close in traits.closes]
        if not closes or not last or last[0] in traits.closes or last[0] not in self.stop_token_ids:
            closes.insert(0, [])
        ends_once = not any(token_id in self.stop_token_ids for token_id in sampled_ids[:-1])
        for close in closes if ends_once else ():
            # The renderer may refuse the turn, because its thinking was cut off or the family's parser fails on the
            # text. Then use an empty turn instead: the tokens after a turn do not depend on its content.
            for turn in ([*sampled_ids, *close], [*traits.thought_end, *(close or last)]):
                added = bridge(self._renderer, prompt_ids, turn, shown, specs)
                if added is not None:
                    return (*close, *added)
        raise UnbridgeableError(
            f"renderer {type(self._renderer).__name__} cannot continue a conversation without changing earlier tokens",
            fix="check that each turn ends at its first stop token and that only tool or user messages follow; if "
            "both are true, set model.renderer to chatml for a ChatML model, or to template",
        )

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Parse a sampled turn. Never raises: a call that cannot be parsed has a `problem`."""
        return self._reader.read(prompt_ids, sampled_ids, tools)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _specs(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        """Return the tools as the renderer expects them.

        Many families write each tool into the prompt as it is, and saw it in OpenAI's form when they were trained:
        {"type": "function", "function": {"name": …}}. Chat servers such as vLLM use this form too.
        """
        shown: list[dict[str, Any]] = [self._control_text.defused(dict(tool)) for tool in tools]
        if isinstance(self._renderer, RoleRenderer) or self._traits.call_example is not None:
            return shown  # we write these ourselves
        return [{"type": "function", "function": tool} for tool in shown]

    def _shown(self, message: Message) -> dict[str, Any]:
        return self._control_text.defused(dict(message)) if message["role"] == "tool" else dict(message)

    def _shown_results(
        self, messages: list[dict[str, Any]], prompt_ids: Sequence[int], sampled_ids: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return tool results with the additional fields that some families need."""
        if self.family == "deepseek-v4":
            # This family writes all results into one user message, but its bridge accepts only one result. The others
            # become text.
            return [m if place == 0 else _as_text(m) for place, m in enumerate(messages)]
        if self.family.startswith("kimi"):
            # This family numbers calls and gives the number in each result.
            for message, call_id in zip(messages, self._call_ids(prompt_ids, sampled_ids), strict=False):
                message["tool_call_id"] = call_id
        return messages

    def _call_ids(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int]) -> list[str]:
        try:
            parsed = self._renderer.parse_response(list(sampled_ids), prompt_ids=list(prompt_ids))
        except (RecursionError, ValueError):  # as in `TurnReader`; the result has no number then
            return []
        return [self._control_text.defused(call.id or "") for call in parsed.tool_calls]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_result>{message['content']}</tool_result>"}
