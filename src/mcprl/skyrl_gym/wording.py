"""A model's chat in messages, for a trainer that renders them itself with the tokenizer's chat template.

SkyRL gives the template messages but no tools, and hands back turns as text. So the tools' schemas are put where the
model's own chat puts them, into the text of the system message, and what the template makes of the messages is compared
with what mcprl would have sampled from: a model whose template does something else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jinja2.exceptions import TemplateError

from mcprl.chat import Chat
from mcprl.chat.control_text import ControlText
from mcprl.chat.reading import JSON_FAMILIES, read_text
from mcprl.errors import BadValueError
from mcprl.records import Message, Observation, ToolCall

__all__ = ["Wording"]

ToolSpec = Mapping[str, Any]

_PLACE = "TheSystemMessage"
_BASE: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look."}]
_RESULTS = tuple(Observation(tool="look", server=None, text=text) for text in ("Seen.", "Heard."))
_TOOL: ToolSpec = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")
_FIX = "set model.renderer to template, or use a model whose family is one of qwen3, qwen3-vl, chatml, template"


class Wording:
    """Conversations, results and turns of one model as texts."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._stops = [chat.decode([token_id]) for token_id in chat.stop_token_ids]
        self._require_readable()
        # Texts of tool servers must not close a turn or open another: the template encodes what spells a control token
        # as that token.
        tags = set(_TAG.findall(self._template(_BASE) or ""))
        self._control_text = ControlText(chat.tokenizer, tags)
        self._results_are_spoken_by_user = self._who_speaks_results()

    def conversation(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
        """The messages, the system's among them, which also says what mcprl's own prompt says about the tools."""
        wanted = self._chat.decode(self._chat.open(messages, tools))
        has_system = bool(messages) and messages[0]["role"] == "system"
        rest = list(messages[1:] if has_system else messages)
        before, place, after = (self._template([_said("system", _PLACE), *rest]) or "").partition(_PLACE)
        end = wanted.rfind(after)
        if place and wanted.startswith(before) and end >= len(before):
            found = [_said("system", wanted[len(before) : end]), *rest]
            if wanted.startswith(self._template(found) or place):
                return found
        raise BadValueError(
            f"the tokenizer's chat template cannot be made to write what model.renderer {self._chat.family} writes",
            fix=_FIX,
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The tokens that mcprl's own trainer would sample the first turn after."""
        return self._chat.open(messages, tools)

    def results(self, observations: Sequence[Observation]) -> list[Message]:
        """What the calls of a turn gave back, as messages."""
        return self._as_messages(observations, by_user=self._results_are_spoken_by_user)

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """The prose and the calls of a turn. What cannot be read is a call with a problem."""
        for stop in self._stops:
            text = text.removesuffix(stop)
        return read_text(text, self._chat.family, self._chat.thinking)

    def _as_messages(self, observations: Sequence[Observation], *, by_user: bool) -> list[Message]:
        shown = [(seen.tool, str(self._control_text.defused(seen.text))) for seen in observations]
        if not by_user:
            return [{"role": "tool", "name": tool, "content": text} for tool, text in shown]
        framed = [f"<tool_response>\n{text}\n</tool_response>" for _, text in shown]
        return [_said("user", "\n\n".join(framed))] if framed else []

    def _who_speaks_results(self) -> bool:
        """Whether the user speaks results, by what mcprl's own chat writes after a turn."""
        prompt_ids = self._chat.open(_BASE[1:], [_TOOL])
        word_ids = self._chat.tokenizer.encode("Word", add_special_tokens=False)
        shown: list[Message] = [{"role": "tool", "name": seen.tool, "content": seen.text} for seen in _RESULTS]
        wanted = self._chat.decode(self._chat.extend(prompt_ids, word_ids, shown, [_TOOL]))
        for by_user in (False, True):
            # As SkyRL does it: after a conversation that is always the same, whose own text is then cut off.
            base, whole = self._template(_BASE), self._template([*_BASE, *self._as_messages(_RESULTS, by_user=by_user)])
            if base and whole and whole.startswith(base) and whole.removeprefix(base).strip() in wanted:
                return by_user
        raise BadValueError(
            f"the tokenizer's chat template shows results of tools in another way than model.renderer "
            f"{self._chat.family} does",
            fix=_FIX,
        )

    def _require_readable(self) -> None:
        written = JSON_FAMILIES.get(self._chat.family)
        if written is not None:
            opening = written.opening or ""
            ids = self._chat.tokenizer.encode(opening, add_special_tokens=False)
            if opening in str(cast("Any", self._chat.tokenizer).decode(ids, skip_special_tokens=True)):
                return
        raise BadValueError(
            f"SkyRL hands turns on as text without control tokens, and calls of the family {self._chat.family} are "
            "written with such tokens",
            fix=_FIX,
        )

    def _template(self, messages: Sequence[Message]) -> str | None:
        """What the template makes of messages; None where it refuses their roles."""
        tokenizer = cast("Any", self._chat.tokenizer)
        try:
            return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=False))
        except (TemplateError, TypeError, KeyError, IndexError):
            return None


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}
