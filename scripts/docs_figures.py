"""Figures that the documentation quotes: each must be the one that was measured.

A number with a mark behind it, `1.06<!-- figure: tool-overhead -->`, must agree with the figure of that promise in
bench/figures.json, to as many digits as it shows; `62.9%` is 0.629. The mark may also stand behind the × and the ** of
a number, as in `**3.4×**<!-- figure: sharing-is-fast -->`. Neither GitHub nor the site shows it. Marks in code are left
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from docs_links import CODE, prose_lines
from figures import Figure

__all__ = ["figure_faults"]

MARK = re.compile(r"<!-- figure: *(?P<id>\S+) *-->")
NUMBER = re.compile(r"(?P<number>[-−]?\d[\d,]*(?:\.\d+)?)(?P<percent> ?%)?×?(?:\*\*)?$")


def figure_faults(files: Mapping[str, Path], figures: Mapping[str, Figure]) -> tuple[int, list[str]]:
    """How many marks these files have, and a sentence for each that is at fault."""
    faults: list[str] = []
    count = 0
    for name, file in files.items():
        for line, before, promise_id in marks_in(file.read_text()):
            count += 1
            fault = fault_of(before, promise_id, figures)
            if fault:
                faults.append(f"{name}:{line}: {fault}")
    return count, faults


def marks_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, the text before the mark, and the id, of every mark outside of code."""
    for number, line in prose_lines(text):
        prose = CODE.sub("", line)
        for mark in MARK.finditer(prose):
            yield number, prose[: mark.start()], mark["id"]


def fault_of(before: str, promise_id: str, figures: Mapping[str, Figure]) -> str | None:
    """What is wrong with a quoted figure; None if nothing is."""
    if promise_id not in figures:
        return f"there is no figure of {promise_id}. Fix: scripts/promises --full {promise_id}"
    shown = NUMBER.search(before)
    if shown is None:
        return f"no number stands before the mark of {promise_id}"
    number = Decimal(shown["number"].replace(",", "").replace("−", "-"))
    value = Decimal(repr(figures[promise_id].value)) * (100 if shown["percent"] else 1)
    half_a_digit = Decimal(5).scaleb(number.as_tuple().exponent - 1)
    if abs(number - value) > half_a_digit:
        return f"{promise_id} was measured as {value.normalize():f}{'%' if shown['percent'] else ''}, not {number:f}"
    return None
