"""Secrets in output that comes line by line, where one secret may be spread over several lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial

from mcprl.redact.shapes import PRIVATE_KEY_BEGIN, PRIVATE_KEY_END

__all__ = ["LineCleaner"]

_BEGIN, _END = re.compile(PRIVATE_KEY_BEGIN), re.compile(PRIVATE_KEY_END)
_KEY_LINE = re.compile(r"\s*(?:[A-Za-z0-9+/=]*|Proc-Type:.*|DEK-Info:.*)\s*")
_MIN_EDGE = 6
_MIN_INSIDE = 8
_REMEMBERED = 400
_WIDEST_PLACE = 80
# Handlers that break long lines fill them up with spaces, and may put more columns beside the message.
_COLUMN = re.compile(r"\S+(?: \S+)*")
_PLACE = re.compile(r" \S+\.\w+:\d+\s*\Z")
_CONTINUED = re.compile(r" {4,}(?=\S)")
_LAST_MARK = re.compile(r"\[redacted [^\[\]]*\]\Z")


class LineCleaner:
    """Takes the lines of one log in their order, and gives each back without secrets.

    Besides what `redact` finds in a line, it strikes out what only several lines together show: the lines of a private
    key, and the parts of what a log handler broke to fit its width. What was broken is seen when the next line comes,
    so the beginning of a secret that nobody registered may be left, and five characters of one that is registered.
    """

    def __init__(self, redact: Callable[[str], str], values: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._redact = redact
        self._values = values
        self._in_key = False
        self._before = ""

    def __call__(self, line: str) -> str:
        if self._in_key:
            self._in_key = _KEY_LINE.fullmatch(line) is not None
            if self._in_key:
                return "[redacted private key]"
        if "-----BEGIN" in line and _BEGIN.search(line) and not _END.search(line):
            self._in_key = True
        place = match[0] if (match := _PLACE.search(line, max(0, len(line) - _WIDEST_PLACE))) else ""
        message = line.removesuffix(place)
        clean = self._strike_parts(self._strike_continued(message))
        indent = _CONTINUED.match(message)
        self._before = (self._before + message.strip() if indent else message.rstrip())[-_REMEMBERED:]
        return clean + self._redact(place)

    def _strike_continued(self, message: str) -> str:
        """The line without the rest of what began in the lines before it."""
        indent = _CONTINUED.match(message)
        if indent is None or not self._before:
            return self._redact(message)
        body = message.strip()
        clean, padding = self._redact(body), message[len(message.rstrip()) :]
        for glue in ("", " "):
            joined = self._redact(f"{self._before}{glue}{body}")
            if joined.endswith(clean):
                continue
            same = _common_end(joined, clean)
            mark = _LAST_MARK.search(joined.removesuffix(same))
            if mark:
                return f"{indent[0]}{mark[0]}{same}{padding}"
        return f"{indent[0]}{clean}{padding}"

    def _strike_parts(self, message: str) -> str:
        for name, value in self._values():
            if _may_hold_part(message, value):
                message = _COLUMN.sub(partial(_strike_parts, name, value), message)
        return message


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-length - 1] == other[-length - 1]:
        length += 1
    return one[len(one) - length :]


def _may_hold_part(line: str, value: str) -> bool:
    if value[:_MIN_EDGE] in line or value[-_MIN_EDGE:] in line:
        return True
    first = line.lstrip()[: len(value)].split("  ", 1)[0].rstrip()
    return len(first) >= _MIN_INSIDE and first in value


def _strike_parts(name: str, value: str, match: re.Match[str]) -> str:
    """A column without the beginning of the value at its end, the end of the value at its beginning, or its middle."""
    column, mark = match[0], f"[redacted {name}]"
    if len(column) >= _MIN_INSIDE and column in value:
        return mark
    start = column.rfind(value[:_MIN_EDGE])
    if start >= 0 and value.startswith(column[start:]):
        column = column[:start] + mark
    end = column.find(value[-_MIN_EDGE:])
    if end >= 0 and value.endswith(column[: end + _MIN_EDGE]):
        column = mark + column[end + _MIN_EDGE :]
    return column
