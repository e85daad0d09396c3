"""Texts made to be slow to read, and how the time to read them is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from processor_time import least_s, uncollected

__all__ = ["BARE", "TAGGED", "cpu_ms", "growth"]


def _repeated(piece: str) -> Callable[[int], str]:
    return lambda size: piece * (size // len(piece))


def _argument(before: str, piece: str, after: str) -> Callable[[int], str]:
    """One call whose argument holds the piece again and again."""

    def make(size: int) -> str:
        inner = piece * (size // len(piece))
        return f'{{"name": "a", "%": {{"x": {before}{inner.removesuffix(",")}{after}}}}}'

    return make


_ARGUMENTS = {
    "a string of tags": _argument('"', "</tool_call><tool_call>", '"'),
    "escapes": _argument('"', "\\u00e9", '"'),
    "escaped quotes": _argument('"', '\\"', '"'),
    "empty lists": _argument("[", "[],", "]"),
    "small objects": _argument("[", '{"":{}},', "]"),
    "numbers": _argument("[", "1.5,", "]"),
    "numbers as long as can be": _argument("[", "9" * 4000 + ",", "]"),
    "a number too long": _argument("", "9", ""),
    "a fraction too long": _argument("0.", "1", ""),
    "too deep": _argument("", "[", ""),
    "deep again and again": _argument("[", "[" * 90 + "]" * 90 + ",", "]"),
    "white space": _argument("", " \n", "1"),
    "a string without an end": _argument('"', "x", ""),
    "a string without an end, of tags": _argument('"', "</tool_call><tool_call>", ""),
    "a string without an end, of quotes": _argument('"', '\\"', ""),
}


def _tagged(make: Callable[[int], str]) -> Callable[[int], str]:
    return lambda size: f"<tool_call>{make(size).replace('%', 'arguments', 1)}</tool_call>"


def _bare(make: Callable[[int], str]) -> Callable[[int], str]:
    return lambda size: make(size).replace("%", "parameters", 1)


# By name, a text of about that many characters. For families that tag their calls:
TAGGED: Mapping[str, Callable[[int], str]] = {
    **{name: _tagged(make) for name, make in _ARGUMENTS.items()},
    "empty calls": _repeated("<tool_call></tool_call>"),
    "calls": _repeated('<tool_call>{"name": "a"}</tool_call> x '),
    "broken calls": _repeated("<tool_call>{</tool_call>\n"),
    "calls that break in a string": _repeated('<tool_call>{"name": "</tool_call>'),
    "calls that are strings": _repeated('<tool_call>"</tool_call>'),
    "calls after much prose": lambda size: "\n" * size + "<tool_call>{</tool_call>" * 128,
    "opening tags": _repeated("<tool_call>"),
    "opening tags and white space": _repeated("<tool_call> \n"),
    "closing tags": _repeated("</tool_call>"),
    "ends of thinking": _repeated("</think>"),
    "beginnings of tags": _repeated("<tool_call"),
    "white space alone": _repeated(" "),
}

# For families that do not:
BARE: Mapping[str, Callable[[int], str]] = {
    **{name: _bare(make) for name, make in _ARGUMENTS.items()},
    "bare calls": _repeated('{"name": "a"};'),
    "bare calls, the last broken": lambda size: '{"name": "a"}\n' * 127 + '{"name": "' + "x" * size,
    "calls that break off": _repeated('{"name'),
    "braces": _repeated("{"),
    "separators": lambda size: '{"name": "a"}' + "; " * (size // 2),
    "white space before": lambda size: " " * size + "{",
}


def cpu_ms(read: Callable[[str], object], text: str, *, looks: int = 5, readings: int = 1) -> float:
    """Processor time for a reading."""
    return least_s(lambda: [read(text) for _ in range(readings)], looks=looks) * 1000 / readings


def growth(read: Callable[[str], object], make: Callable[[int], str]) -> float:
    """The factor by which the time grows if the text doubles, over four doublings from 64 KB to 1 MB.

    Each look takes 10 ms at least, because a clock is not exact. Four doublings, because what fits into the caches of
    a processor at one size does not at another, which makes one doubling cost more than the next. The collector is off:
    what it takes depends on all the other objects of the process.
    """
    with uncollected():
        small, large = (
            cpu_ms(read, text, readings=math.ceil(10 / max(cpu_ms(read, text, looks=1), 0.01)))
            for text in (make(1 << 16), make(1 << 20))
        )
    return (large / small) ** (1 / 4)
