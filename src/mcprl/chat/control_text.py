"""Breaks up what spells a control token, in texts that tool servers wrote.

The renderers of most families encode such a text as the token itself, which would close a turn, open a call or change
a role. Broken up means that a gap follows the first character: `<|im_end|>` becomes `< |im_end|>`.

What is control text:

- Every added token of the tokenizer that is special or holds a bracket or a bar. Added tokens that are not special
  mark up calls and thinking in many families (`<arg_key>`, `<minimax:tool_call>`, `<｜User｜>`); those without any
  bracket are runs of spaces and plain words, which structure nothing.
- The tags that the family frames messages with where they are plain text (`<user>` of Laguna, `<response>` of MiniMax,
  `[INST]`), and in any family the tags of calls, results and thinking.

A text of one character cannot be broken up, and one that goes on with a space would only grow: neither is a marker.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from renderers.base import Tokenizer

__all__ = ["ControlText", "control_tokens"]

_TAGS = r"</?(?:tool|think)\w*>"
_BRACKETS = {"Ps", "Pe", "Pi", "Pf"}  # Unicode's categories of opening and closing marks
_BARS = "<>|｜"


class ControlText:
    """The control text of one model. `tags` are the texts that frame messages besides the tokenizer's own tokens."""

    def __init__(self, tokenizer: Tokenizer, tags: Collection[str]) -> None:
        self._tokenizer = tokenizer
        tokens = control_tokens(tokenizer)
        self._ids = frozenset(tokens.values())
        texts = [text.strip() for text in (*tokens, *tags)]
        # Some tokenizers look for added tokens in lower case.
        self._pattern = re.compile("|".join([_TAGS, *([_any_of(texts)] if texts else [])]), re.IGNORECASE)

    def defused(self, value: Any) -> Any:
        """The same value, with every text in it broken up where it spells a control token."""
        if isinstance(value, str):
            return self._defused_text(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.defused(key): self.defused(inner) for key, inner in items}
        if isinstance(value, list | tuple):
            return [self.defused(inner) for inner in cast("Iterable[Any]", value)]
        return value

    def _defused_text(self, text: str) -> str:
        # Halves of characters come with JSON's \ud800 escapes, and no tokenizer takes them.
        text = text.encode(errors="replace").decode()
        if text and unicodedata.category(text[0]).startswith("M"):
            text = f" {text}"  # A mark that joins the character before it would change the tag that frames the text.
        broken = self._broken_up(text)
        if broken.isascii():
            return broken
        # A tokenizer that brings text into a normal form may find a marker where none is spelt (`＜think＞`): it is
        # asked. Such texts reach the policy in the normal form that holds no more lookalikes, at worst without them.
        for lookalike_free in (unicodedata.normalize("NFKC", text), text.encode("ascii", "replace").decode()):
            if self._ids.isdisjoint(self._tokenizer.encode(broken, add_special_tokens=False)):
                break
            broken = self._broken_up(lookalike_free)
        return broken

    def _broken_up(self, text: str) -> str:
        found = 1
        while found:  # Markers can overlap, and then the first pass leaves one whole.
            text, found = self._pattern.subn(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that structure chats, by their text."""
    added: Mapping[int, Any] = cast("Any", tokenizer).added_tokens_decoder
    texts = {
        str(token.content): token_id
        for token_id, token in added.items()
        if token.special or _has_bracket(token.content)
    }
    return {text: token_id for text, token_id in texts.items() if _can_be_broken(text.strip())}


def _has_bracket(text: str) -> bool:
    return any(character in _BARS or unicodedata.category(character) in _BRACKETS for character in text)


def _can_be_broken(text: str) -> bool:
    return len(text) > 1 and not text[1].isspace()


def _any_of(texts: Iterable[str]) -> str:
    """A pattern for any of the texts. Those that begin alike share that part: tokenizers have thousands."""
    tails: dict[str, list[str]] = {}
    for text in texts:
        if not text:
            return ""  # The shortest is enough: to break it up breaks up those that go on.
        tails.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(head) + _any_of(rest) for head, rest in sorted(tails.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
