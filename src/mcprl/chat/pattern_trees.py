r"""Texts that a schema's `pattern` and lengths admit, as trees that are counted and written for a grammar.

xgrammar matches a pattern against the raw text between two quotes, and lets it write quotes, backslashes and markers as
they are. So a tree is written over characters only that need no escape and cannot begin a marker. Where the text is
JSON (`escapes`), the others are written as escapes.

xgrammar 0.2.8 counts up to 128 of a character exactly. Beyond that it admits tokens that it then refuses, or takes tens
of milliseconds a token; so a pattern that counts further is too large. A counted choice (with escapes, every character
is one) is written out, because it is as slow otherwise.

>>> write_pattern(Joined((Repeated(Chars(((97, 99),)), 1, None), Chars(((45, 45),)))))
'^[a-c]+\\-$'
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ANY_TEXT",
    "MAX_COUNT",
    "Anchor",
    "Chars",
    "Either",
    "Joined",
    "Pattern",
    "Ranges",
    "Repeated",
    "is_too_large",
    "length_of",
    "num_chars",
    "with_length",
    "without",
    "write_pattern",
]

MAX_COUNT = 128
_MAX_CHARS = 512

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ranges: Chars(((48, 57),)) is a digit."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Joined:
    """One pattern after the other: Joined(()) is the empty text."""

    items: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several patterns: Either(()) matches nothing."""

    options: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A pattern several times: Repeated(Chars(((48, 57),)), 1, None) is one digit or more."""

    item: Pattern
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The beginning or the end of the text: Anchor("^"). Only while a pattern is read."""

    sign: str


Pattern = Chars | Joined | Either | Repeated | Anchor

TOP = 0x10FFFF


def without(ranges: Ranges) -> Ranges:
    """All characters but these."""
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
# Characters that stand in a JSON string as they are, without `<`, with which markers begin.
_PLAIN = without(((0x00, 0x1F), (0x22, 0x22), (0x3C, 0x3C), (0x5C, 0x5C), (0xD800, 0xDFFF)))
_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x3C: "u003c", 0x5C: r"\\"}


def length_of(tree: Pattern) -> tuple[int, int | None]:
    """The fewest and the most characters of a text that matches; None: without end."""
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
    """Whether the pattern counts further than a grammar can."""
    return num_chars(tree) > _MAX_CHARS


def num_chars(tree: Pattern) -> int:
    """How many characters the pattern has, with all its counts written out."""
    match tree:
        case Joined(parts) | Either(parts):
            return sum(num_chars(part) for part in parts)
        case Repeated(item, least, most):
            times = max(least, 1 if most is None else most)
            return num_chars(item) * times if times <= MAX_COUNT else _MAX_CHARS + 1
        case Chars() | Anchor():
            return 1


def with_length(tree: Pattern, least: int, most: int | None) -> Pattern | None:
    """The tree held to a length. None where that takes more than the count of one repeated character."""
    low, high = length_of(tree)
    if low >= least and (most is None or (high is not None and high <= most)):
        return tree
    if isinstance(tree, Either):
        options = [with_length(option, least, most) for option in tree.options]
        return None if None in options else Either(tuple(option for option in options if option is not None))
    items = tree.items if isinstance(tree, Joined) else (tree,)
    open_ended = [item for item in items if length_of(item)[0] != length_of(item)[1]]
    if len(open_ended) > 1 and ANY_TEXT in items:
        return _on_fewer_sides(items, least, most)
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


def _on_fewer_sides(items: tuple[Pattern, ...], least: int, most: int | None) -> Pattern | None:
    """Held to a length with anything on one side only, or on none: fewer texts, but ones that can be counted."""
    inner = tuple(item for item in items if item != ANY_TEXT)
    for fewer in ((*inner, ANY_TEXT), inner):
        counted = with_length(Joined(fewer), least, most) if fewer != items else None
        if counted is not None and counted != Either(()):
            return counted
    return None


def write_pattern(tree: Pattern, *, escapes: bool = False) -> str | None:
    """The tree as a regular expression over raw text. None where no text is left that may be written.

    `escapes`: the text is JSON, where a character that may not stand there as it is can be written as an escape.
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
            raise AssertionError("anchors are resolved when a pattern is read")


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
