"""A renderer for models that `renderers` does not know and that are no ChatML: their own template, for roles only.

What stands around the contents of messages is found by rendering words that occur nowhere else in their place. Tools
are listed in the system text and calls written as `<tool_call>` JSON, whatever the template would do with them. Where
it knows no system role, that text begins the first user message; where it knows no tool role, results are what the
user says, in `<tool_response>`.

A conversation must never be rendered again, so the template is tried on one of several turns before it is used: each
beginning must stay as it is when messages follow, and what follows a turn must not depend on what the turn said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from jinja2.exceptions import TemplateError
from renderers.base import Tokenizer

from mcprl.chat.roles import RoleRenderer, Spoken
from mcprl.errors import BadValueError, UnbridgeableError

__all__ = ["TemplateRenderer"]

_FIX = "set model.renderer to the model's family, or to chatml for a ChatML model"
# Turns that templates are known to treat apart: with thinking, which some take out, and with calls.
_REMARKABLE = ("<think>\nHm.\n</think>\n\n", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n')


class _NotRenderedError(Exception):
    """The template refuses these roles, or leaves contents out."""


class TemplateRenderer(RoleRenderer):
    """Chats as the tokenizer's template frames them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            raise BadValueError("model.renderer is template, but the tokenizer has no chat template", fix=_FIX)
        self._cached_frame = lru_cache(maxsize=256)(self._find_frame)
        self._has_system = self._takes("system", "user", "assistant")
        self._has_tool = self._takes("user", "assistant", "tool", "tool", "assistant", "tool", "assistant")
        self._check_prefixes()

    def frame(self, roles: Sequence[str], *, opening: bool) -> list[str]:
        try:
            return list(self._cached_frame(tuple(roles), opening=opening))
        except _NotRenderedError as error:
            raise UnbridgeableError(
                f"the chat template cannot render messages of the roles {', '.join(roles)}: {error}", fix=_FIX
            ) from error

    def spoken(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[Spoken]:
        said = super().spoken(messages, tools)
        if not self._has_tool:
            said = [("user", _framed_result(text)) if role == "tool" else (role, text) for role, text in said]
        if not self._has_system:
            said = [("user" if role == "system" else role, text) for role, text in said]
        # Templates that know only users and assistants want them to take turns.
        return said if self._has_tool and self._has_system else _joined(said)

    def _takes(self, *roles: str) -> bool:
        try:
            self._cached_frame(roles, opening=False)
        except _NotRenderedError:
            return False
        return True

    def _find_frame(self, roles: tuple[str, ...], *, opening: bool, said: str = "", turn: int = -1) -> tuple[str, ...]:
        """What stands around contents. `said` is something the template may look at, in the contents of `turn`."""
        words = [f"Content{place}of{len(roles)}" for place in range(len(roles))]
        messages = [
            {"role": role, "content": said + word if place == turn else word, "name": "tool"}
            for place, (role, word) in enumerate(zip(roles, words, strict=True))
        ]
        try:
            text = str(
                cast("Any", self._tokenizer).apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=opening
                )
            )
        except (TemplateError, TypeError, KeyError, IndexError) as error:
            raise _NotRenderedError(str(error) or type(error).__name__) from error
        frame = re.split("|".join(words), text)
        if re.findall("|".join(words), text) != words:
            raise _NotRenderedError("contents are left out, written twice or out of order")
        return tuple(frame)

    def _check_prefixes(self) -> None:
        result = "tool" if self._has_tool else "user"
        roles = ["system"] * self._has_system + ["user", "assistant", result, "assistant", result, "assistant"]
        if self._has_tool:  # Several results, and a user who comes back.
            roles += ["tool", "tool", "assistant", "user", "assistant"]
        whole = self.frame(roles, opening=False)
        for turn in [place for place, role in enumerate(roles) if role == "assistant"]:
            _check_begins(self.frame(roles[:turn], opening=True), whole, turn, opening=True)
            _check_begins(self.frame(roles[: turn + 1], opening=False), whole, turn + 1, opening=False)
            for said in _REMARKABLE:
                looked_at = self._find_frame(tuple(roles), opening=False, said=said, turn=turn)
                if list(looked_at[turn + 1 :]) != whole[turn + 1 :]:
                    raise _not_stable(turn + 1, f"what follows a turn depends on whether it says {said.split()[0]}")
            following = roles[turn + 1 :]
            if following:
                new = following[: following.index("assistant")]
                after = self.frame(["user", "assistant", *new], opening=True)[2:]
                _check_begins(after, whole[turn + 1 :], len(new), opening=True, places_before=turn + 1)


def _check_begins(
    shorter: Sequence[str], whole: Sequence[str], length: int, *, opening: bool, places_before: int = 0
) -> None:
    """Whether a frame of `length` contents is how the whole one begins. An opening may go on, as with `<think>`."""
    for place in range(length):
        if shorter[place] != whole[place]:
            raise _not_stable(
                places_before + place, f"{shorter[place]!r} becomes {whole[place]!r} when messages follow"
            )
    longer, begun = (shorter[length], whole[length]) if opening else (whole[length], shorter[length])
    if not longer.startswith(begun):
        raise _not_stable(places_before + length, f"{shorter[length]!r} becomes {whole[length]!r} when messages follow")


def _not_stable(place: int, what: str) -> UnbridgeableError:
    return UnbridgeableError(
        f"the chat template rewrites a conversation as it goes on: at message {place} {what}", fix=_FIX
    )


def _framed_result(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


def _joined(said: Sequence[Spoken]) -> list[Spoken]:
    joined: list[Spoken] = []
    for role, text in said:
        if joined and role == "user" == joined[-1][0]:
            joined[-1] = (role, f"{joined[-1][1]}\n\n{text}")
        else:
            joined.append((role, text))
    return joined
