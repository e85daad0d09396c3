r"""Parses the regular expressions of JSON Schemas into trees that match whole strings.

JSON Schema searches a string for a `pattern`, but xgrammar matches the whole string. So on each side without an anchor,
the tree matches any text. xgrammar ignores look-around and inner anchors with a warning; here they raise ValueError.

Libraries disagree on what `\d`, `\w` and `\s` match beyond ASCII. Each class is taken as small as possible, and as
large as possible if it is negated, so that all libraries accept every string that the tree matches.

>>> write_pattern(read_pattern("^[a-c]+-[0-9]{2}$"))
'^[a-c]+\\-[0-9]{2}$'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcprl.bounds import MAX_PATTERN_CHARS

MAX_COUNT = 128
_MAX_CHARS = 512

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character from these ranges: Chars(((48, 57),)) is a digit."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Joined:
    """Patterns in sequence: Joined(()) matches only the empty string."""

    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several patterns: Either(()) matches nothing."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A repeated pattern: Repeated(Chars(((48, 57),)), 1, None) is one or more digits."""

    item: Pattern
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The beginning or the end of the string: Anchor("^"). Used only while a pattern is parsed."""

    sign: str


Pattern = Chars | Joined | Either | Repeated | Anchor

TOP = 0x10FFFF


def without(ranges: Ranges) -> Ranges:
    """Return the ranges of all characters except these."""
    kept: list[tuple[int, int]] = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            kept.append((start, low - 1))
        start = max(start, high + 1)
    return tuple(kept) + (((start, TOP),) if start <= TOP else ())


def _both(left: Ranges, right: Ranges) -> Ranges:
    return without(without(left) + without(right))


_ANY = Chars(((0, TOP),))
ANY_TEXT = Repeated(_ANY, 0, None)
# Characters that need no escape in a JSON string. `<` is not included, because markers begin with it.
_PLAIN = without(((0x00, 0x1F), (0x22, 0x22), (0x3C, 0x3C), (0x5C, 0x5C), (0xD800, 0xDFFF)))
_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x3C: "u003c", 0x5C: r"\\"}


def length_of(tree: Pattern) -> tuple[int, int | None]:
    """Return the minimum and maximum length of matching strings. None: no maximum."""
    match tree:
        case Chars():
            return 1, 1
        case Joined(items):
            lengths = [length_of(item) for item in items]
            most = [high for _, high in lengths if high is not None]
            return sum(low for low, _ in lengths), sum(most) if len(most) == len(lengths) else None
        case Either(options):
            lengths = [length_of(option) for option in options]
            most = [high for _, high in lengths if high is not None]
            return min((low for low, _ in lengths), default=0), max(most) if len(most) == len(lengths) else None
        case Repeated(item, least, most):
            low, high = length_of(item)
            return low * least, high * most if high is not None and most is not None else None
        case Anchor():
            return 0, 0


def is_too_large(tree: Pattern) -> bool:
    """Return whether the pattern is too large for a grammar once its repetitions are expanded."""
    return num_chars(tree) > _MAX_CHARS


def num_chars(tree: Pattern) -> int:
    """Return the number of characters in the pattern after its repetitions are expanded."""
    match tree:
        case Joined(parts) | Either(parts):
            return sum(num_chars(part) for part in parts)
        case Repeated(item, least, most):
            times = max(least, 1 if most is None else most)
            return num_chars(item) * times if times <= MAX_COUNT else _MAX_CHARS + 1
        case Chars() | Anchor():
            return 1


def with_length(tree: Pattern, least: int, most: int | None) -> Pattern | None:
    """Limit the tree to strings of `least` to `most` characters.

    Returns None if this is not possible by changing the count of a single repeated character.
    """
    low, high = length_of(tree)
    if low >= least and (most is None or (high is not None and high <= most)):
        return tree
    if isinstance(tree, Either):
        options = [with_length(option, least, most) for option in tree.options]
        return None if None in options else Either(tuple(option for option in options if option is not None))
    items = tree.items if isinstance(tree, Joined) else (tree,)
    open_ended = [item for item in items if length_of(item)[0] != length_of(item)[1]]
    if not open_ended:
        return Either(())
    loose = open_ended[0]
    if len(open_ended) > 1 or not isinstance(loose, Repeated) or not isinstance(loose.item, Chars):
        return None
    fixed = sum(length_of(item)[0] for item in items if item is not loose)
    fewest = max(loose.least, least - fixed)
    mosts = [bound for bound in (loose.most, None if most is None else most - fixed) if bound is not None]
    if mosts and min(mosts) < fewest:
        return Either(())
    counted = Repeated(loose.item, fewest, min(mosts) if mosts else None)
    return Joined(tuple(counted if item is loose else item for item in items))


def write_pattern(tree: Pattern, *, escapes: bool = False) -> str | None:
    """Write the tree as a regular expression for raw text. Returns None if no matching text can be written.

    With `escapes`, the text is JSON, so characters that may not appear in it can be escaped.
    """
    written = _grouped(tree, escapes) if isinstance(tree, Either) else _write(tree, escapes)
    return None if written is None else f"^{written}$"


def _write(tree: Pattern, escapes: bool) -> str | None:
    match tree:
        case Chars(ranges):
            return _write_chars(ranges, escapes)
        case Joined(items):
            texts = [_grouped(item, escapes) if isinstance(item, Either) else _write(item, escapes) for item in items]
            return None if None in texts else "".join(text for text in texts if text is not None)
        case Either(options):
            texts = [text for option in options if (text := _write(option, escapes)) is not None]
            return "|".join(texts) if texts else None
        case Repeated(item, least, most):
            text = _grouped(item, escapes)
            if text is None or most == 0:
                return "" if least == 0 else None
            if isinstance(item, Chars) and text.startswith("(?:"):
                return _written_out(text, least, most)
            counts = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
            count = f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"
            return text + counts.get((least, most), count)
        case Anchor():
            raise AssertionError("an anchor is left, although they are resolved when a pattern is read")


def _written_out(text: str, least: int, most: int | None) -> str:
    if most is None:
        return text * (least - 1) + text + "+" if least else text + "*"
    return text * least + f"(?:{text}" * (most - least) + ")?" * (most - least)


def _grouped(tree: Pattern, escapes: bool) -> str | None:
    text = _write(tree, escapes)
    single = isinstance(tree, Chars) and text is not None and not text.startswith("(?:")
    return text if text is None or single else f"(?:{text})"


def _write_chars(ranges: Ranges, escapes: bool) -> str | None:
    plain = _both(ranges, _PLAIN)
    texts: list[str] = []
    if len(plain) == 1 and plain[0][0] == plain[0][1]:
        texts = [_literal(plain[0][0])]
    elif plain:
        texts = ["[" + "".join(_class_range(low, high) for low, high in plain) + "]"]
    if escapes:
        texts += [r"\\" + _ESCAPES[code] for code in _ESCAPES if _both(ranges, ((code, code),))]
    if not texts:
        return None
    return texts[0] if len(texts) == 1 and (plain or not escapes) else f"(?:{'|'.join(texts)})"


def _literal(code: int) -> str:
    char = chr(code)
    return "\\" + char if char in r"\^$.|?*+()[]{}/-" else char


def _class_range(low: int, high: int) -> str:
    ends = ["\\" + chr(code) if chr(code) in r"\]^-[" else chr(code) for code in (low, high)]
    return ends[0] if low == high else "-".join(ends)


_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_BEYOND_ASCII: Ranges = ((0x80, 0x10FFFF),)
_WIDE_SPACE: Ranges = (
    *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200B)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
# What each shorthand matches in all libraries, and what it matches in at least one.
_SHORTHANDS: dict[str, tuple[Ranges, Ranges]] = {
    "d": (_DIGITS, _DIGITS + _BEYOND_ASCII),
    "D": (without(_DIGITS + _BEYOND_ASCII), without(_DIGITS)),
    "w": (_WORD, _WORD + _BEYOND_ASCII),
    "W": (without(_WORD + _BEYOND_ASCII), without(_WORD)),
    "s": (_SPACE, _WIDE_SPACE),
    "S": (without(_WIDE_SPACE), without(_SPACE)),
}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}

_NOT_NEWLINE = Chars(without(((0x0A, 0x0A), (0x0D, 0x0D), (0x85, 0x85), (0x2028, 0x2029))))


def read_pattern(pattern: str) -> Pattern:
    """Parse a JSON Schema `pattern`, which may match any part of a string, into a tree that matches whole strings.

    If the pattern cannot be translated exactly, raises a ValueError that names the construct at fault.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"a pattern of more than {MAX_PATTERN_CHARS} characters")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"an invalid regular expression ({error})") from error
    return _searched(_Reader(pattern).read())


def _searched(tree: Pattern) -> Pattern:
    """Replace the outer anchors. On a side without an anchor, the tree matches any text."""
    if isinstance(tree, Either):
        return Either(tuple(_searched(option) for option in tree.options))
    items = tree.items if isinstance(tree, Joined) else (tree,)
    if len(items) == 1 and isinstance(items[0], Either):
        return _searched(items[0])
    starts, ends = items[:1] == (Anchor("^"),), items[-1:] == (Anchor("$"),)
    inner = items[1 if starts else 0 : len(items) - (1 if ends else 0)]
    if any(_holds_anchor(item) for item in inner):
        raise ValueError("an anchor (^ or $) inside the pattern")
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
    """A recursive descent parser for regular expressions that Python accepts."""

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
                raise ValueError("a repetition without a minimum ({,n})")
            return item
        self._place = counts.end()
        sign, least, comma, most = counts.groups()
        if isinstance(item, Anchor):
            raise ValueError("an anchor (^ or $) inside the pattern")
        if self._take("+"):
            raise ValueError("a possessive quantifier")
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
            self._next()  # the closing parenthesis
            return inner
        return Chars(((ord(char), ord(char)),))

    def _read_class(self) -> Pattern:
        negated = self._take("^")
        if self._text.startswith("]", self._place):
            raise ValueError("an empty character class ([])")
        sure: Ranges = ()
        wide: Ranges = ()
        while not self._take("]"):
            low = self._read_class_item()
            if self._text.startswith("-", self._place) and not self._text.startswith("-]", self._place):
                self._place += 1
                high = self._read_class_item()
                low = _exactly(low[0][0][0], high[0][0][0])  # Python does not accept a shorthand as the end of a range
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
