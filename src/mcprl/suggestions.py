"""What someone may have meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """The hint that follows a wrong name in a message, ` (did you mean 'steps'?)`; nothing where none is near."""
    close = difflib.get_close_matches(written, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
