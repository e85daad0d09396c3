"""Results made fit to be read: nothing that is invisible or moves a cursor, and no more bytes than allowed.

Removed are escape sequences of terminals and control characters (a line break and a tab stay; a carriage return becomes
a line break), the characters that reverse the order of reading, the Unicode tags in which invisible instructions are
written, and halves of surrogate pairs, which are no text. Everything else stays, joined emoji included; of the flags
written with tags (England, Scotland, Wales) the plain flag stays.

Tokens of chat templates are not handled here: what they are depends on the model, and rendering neutralises them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["sanitise"]

_ASCII_CONTROLS = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
_UNWANTED = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f"
_ANY_UNWANTED = re.compile(f"[{_UNWANTED}]")

# Each alternative begins with a control character and stops at the next one, so that the whole takes linear time.
# The last removes whatever is left over: after one pass nothing remains that a second could remove.
_REMOVED = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # colours and cursor movements
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links, strings
    "|\x1b[ -/]*[0-~]"  # character sets, resets, and the beginning of a string that never ends
    f"|[{_UNWANTED}]"
)


def sanitise(text: str, *, max_bytes: int, redact: Callable[[str], str] | None = None) -> tuple[str, bool]:
    """The text to show, at most `max_bytes` of UTF-8 (64 or more), and whether it was cut.

    `redact` takes the secrets out in between: after the cleaning, because a secret with an invisible character in it is
    not recognised, and before the cut, because half a secret is not either. A text that was cut says so in its last
    line: `[cut: 65,497 of 1,234,567 bytes shown]`.
    """
    text = _clean(text)
    if redact is not None:
        text = redact(text)
    return _cut(text, max_bytes)


def _clean(text: str) -> str:
    if text.isascii():
        # Several times faster than a regular expression, for what nearly all results are.
        data = text.encode("ascii")
        if len(data.translate(None, _ASCII_CONTROLS)) == len(data):
            return text
    elif _ANY_UNWANTED.search(text) is None:
        return text
    return _REMOVED.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _cut(text: str, max_bytes: int) -> tuple[str, bool]:
    if len(text) * 4 <= max_bytes:
        return text, False
    data = text.encode()
    if len(data) <= max_bytes:
        return text, False
    # Room for the note with the largest number it could show; the real one is never longer.
    room = max_bytes - len(_note(max_bytes, len(data)))
    # What is ignored can only be the character that the cut went through.
    shown = data[:room].decode(errors="ignore")
    return shown + _note(len(shown.encode()), len(data)), True


def _note(shown: int, total: int) -> str:
    return f"\n[cut: {shown:,} of {total:,} bytes shown]"
