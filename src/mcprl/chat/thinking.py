"""The thinking of a turn: where it begins, which the prompt decides, and where it ends, which the policy decides."""

from __future__ import annotations

import re
from enum import StrEnum

__all__ = ["Thinking", "split_thinking"]

_CLOSE = "</think>"
_OPENED_BY_THE_TURN = re.compile(r"\s*<think>")


class Thinking(StrEnum):
    """How a turn begins.

    NONE: the prompt has closed thinking, or the model has none. OPTIONAL: the model may open it itself, with `<think>`.
    OPEN: the prompt ends in `<think>`, so that the turn begins inside.
    """

    NONE = "none"
    OPTIONAL = "optional"
    OPEN = "open"


def split_thinking(text: str, thinking: Thinking, *, call_opening: str | None) -> tuple[str, str]:
    """Split the text of a turn into its thinking and the rest.

    The first `</think>` ends thinking, so a call drafted before it is thought of and never carried out. Where there is
    none, the first `call_opening` ends it; without that too, all of the text is thinking. A turn that begins with
    `<think>` thinks whatever the prompt asked for: under NONE too, what a model thinks is no answer.

    >>> split_thinking("Ana, then. </think>Lima.", Thinking.OPEN, call_opening="<tool_call>")
    ('Ana, then. ', 'Lima.')
    """
    opened = _OPENED_BY_THE_TURN.match(text)
    if opened is None and thinking is not Thinking.OPEN:
        return "", text
    start = opened.end() if opened else 0
    closed = text.find(_CLOSE, start)
    if closed >= 0:
        return text[start:closed], text[closed + len(_CLOSE) :]
    called = text.find(call_opening, start) if call_opening is not None else -1
    end = called if called >= 0 else len(text)
    return text[start:end], text[end:]
