"""Text that others wrote, made safe for a terminal."""

from __future__ import annotations

import re

__all__ = ["printable"]

# Control characters other than newline and tab, among them the escape that begins every ANSI sequence; characters that
# reverse the direction of what follows; and halves of surrogate pairs, which cannot be written at all.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with characters that command a terminal written out, as models and tools may send them.

    >>> printable("\x1b[31mred\x1b[0m\r")
    '\\x1b[31mred\\x1b[0m\\x0d'
    """
    return _UNPRINTABLE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
