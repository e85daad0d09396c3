r"""Regular expressions of JSON schemas, read as trees (pattern_trees.py) that match whole texts.

JSON Schema searches a string for a `pattern`; xgrammar matches the whole, and ignores look-around and inner anchors
with a warning. So the sides that a pattern leaves open are filled with any characters, and what it holds that a grammar
cannot is refused in words.

Libraries disagree on what `\d`, `\w` and `\s` hold beyond ASCII. Each is read at its narrowest where a pattern asks for
it and at its widest where a pattern forbids it: what is read here is what all of them accept.

>>> write_pattern(read_pattern("^[a-c]+-[0-9]{2}$"))
'^[a-c]+\\-[0-9]{2}$'
"""

from __future__ import annotations

import re

from mcprl.chat.pattern_trees import (
    ANY_TEXT,
    MAX_COUNT,
    Anchor,
    Chars,
    Either,
    Joined,
    Pattern,
    Ranges,
    Repeated,
    is_too_large,
    length_of,
    num_chars,
    with_length,
    without,
    write_pattern,
)

__all__ = [
    "ANY_TEXT",
    "MAX_COUNT",
    "Chars",
    "Either",
    "Joined",
    "Pattern",
    "Repeated",
    "is_too_large",
    "num_chars",
    "read_pattern",
    "with_length",
    "write_pattern",
]

_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_BEYOND_ASCII: Ranges = ((0x80, 0x10FFFF),)
_WIDE_SPACE: Ranges = (
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200B)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
# What each shorthand surely holds, and what it holds at most.
_SHORTHANDS: dict[str, tuple[Ranges, Ranges]] = {
    "d": (_DIGITS, _DIGITS + _BEYOND_ASCII),
    "D": (without(_DIGITS + _BEYOND_ASCII), without(_DIGITS)),
    "w": (_WORD, _WORD + _BEYOND_ASCII),
    "W": (without(_WORD + _BEYOND_ASCII), without(_WORD)),
    "s": (_SPACE, _WIDE_SPACE),
    "S": (without(_WIDE_SPACE), without(_SPACE)),
}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}

_MAX_READ = 4096

_NOT_NEWLINE = Chars(without(((0x0A, 0x0A), (0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))))


def read_pattern(pattern: str) -> Pattern:
    """A pattern as JSON Schema means it, a search, as a tree that matches whole texts.

    Raises ValueError, with what the pattern holds, where that cannot be told exactly.
    """
    if len(pattern) > _MAX_READ:
        raise ValueError(f"a pattern of more than {_MAX_READ} characters")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"no valid regular expression ({error})") from error
    return _searched(_Reader(pattern).read())


def _searched(tree: Pattern) -> Pattern:
    """The tree with its outer anchors resolved: a side without an anchor may be followed by anything."""
    if isinstance(tree, Either):
        return Either(tuple(_searched(option) for option in tree.options))
    items = tree.items if isinstance(tree, Joined) else (tree,)
    if len(items) == 1 and isinstance(items[0], Either):
        return _searched(items[0])
    starts, ends = items[:1] == (Anchor("^"),), items[-1:] == (Anchor("$"),)
    inner = items[1 if starts else 0 : len(items) - (1 if ends else 0)]
    if any(_holds_anchor(item) for item in inner):
        raise ValueError("an anchor (^ or $) inside")
    if not (starts and ends) and all(length_of(item)[0] == 0 for item in inner):
        return ANY_TEXT
    return Joined((*(() if starts else (ANY_TEXT,)), *inner, *(() if ends else (ANY_TEXT,))))


def _holds_anchor(tree: Pattern) -> bool:
    match tree:
        case Anchor():
            return True
        case Joined(parts) | Either(parts):
            return any(_holds_anchor(part) for part in parts)
        case Repeated(item):
            return _holds_anchor(item)
        case Chars():
            return False


class _Reader:
    """Recursive descent over a regular expression that Python has found valid."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def read(self) -> Pattern:
        options = [self._read_joined()]
        while self._take("|"):
            options.append(self._read_joined())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _take(self, token: str) -> bool:
        found = self._text.startswith(token, self._place)
        self._place += len(token) if found else 0
        return found

    def _next(self) -> str:
        char = self._text[self._place]
        self._place += 1
        return char

    def _read_joined(self) -> Pattern:
        items: list[Pattern] = []
        while self._place < len(self._text) and self._text[self._place] not in "|)":
            items.append(self._read_repeated())
        return items[0] if len(items) == 1 else Joined(tuple(items))

    def _read_repeated(self) -> Pattern:
        item = self._read_item()
        counts = re.compile(r"([*+?])|\{(\d+)(,?)(\d*)\}").match(self._text, self._place)
        if counts is None:
            if self._text.startswith("{,", self._place):
                raise ValueError("a count without its beginning ({,n})")
            return item
        self._place = counts.end()
        sign, least, comma, most = counts.groups()
        if isinstance(item, Anchor):
            raise ValueError("an anchor (^ or $) inside")
        if self._take("+"):
            raise ValueError("a possessive count")
        self._take("?")  # a lazy count matches the same texts
        if sign is not None:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            return Repeated(item, low, high)
        return Repeated(item, int(least), int(most) if most else None if comma else int(least))

    def _read_item(self) -> Pattern:
        char = self._next()
        if char in "^$":
            return Anchor(char)
        if char == ".":
            return _NOT_NEWLINE
        if char == "[":
            return self._read_class()
        if char == "\\":
            return Chars(self._read_escape()[0])
        if char == "(":
            if self._take("?") and not self._take(":"):
                raise ValueError("look-around, flags or a named group ((?…))")
            inner = self.read()
            self._next()  # the closing parenthesis, which Python has seen
            return inner
        return Chars(((ord(char), ord(char)),))

    def _read_class(self) -> Pattern:
        negated = self._take("^")
        if self._text.startswith("]", self._place):
            raise ValueError("an empty class ([])")
        sure: Ranges = ()
        wide: Ranges = ()
        while not self._take("]"):
            low = self._read_class_item()
            if self._text.startswith("-", self._place) and not self._text.startswith("-]", self._place):
                self._place += 1
                high = self._read_class_item()
                low = _exactly(low[0][0][0], high[0][0][0])  # Python has refused a shorthand as an end of a range
            sure, wide = sure + low[0], wide + low[1]
        return Chars(without(wide) if negated else without(without(sure)))

    def _read_class_item(self) -> tuple[Ranges, Ranges]:
        char = self._next()
        return self._read_escape() if char == "\\" else _exactly(ord(char), ord(char))

    def _read_escape(self) -> tuple[Ranges, Ranges]:
        char = self._next()
        if char in _SHORTHANDS:
            return _SHORTHANDS[char]
        if char in "xu":
            digits = {"x": 2, "u": 4}[char]
            code = int(self._text[self._place : self._place + digits], 16)
            self._place += digits
        elif char in _CONTROLS:
            code = _CONTROLS[char]
        elif char.isalnum():
            raise ValueError(f"\\{char}")
        else:
            code = ord(char)
        return _exactly(code, code)


def _exactly(low: int, high: int) -> tuple[Ranges, Ranges]:
    return ((low, high),), ((low, high),)
