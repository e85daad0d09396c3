"""How much is read of what comes from outside, so that nothing from there can stop a run.

A server that nobody here controls writes the schemas of its tools. Each of these limits is far above what real servers
need and low enough that the work within it ends in about a second. What exceeds one raises OverLimitError, which the
caller turns into an error that names the server, the tool and a fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = [
    "MAX_COUNTED_CHARS",
    "MAX_DEPTH",
    "MAX_ENUM_VALUES",
    "MAX_EXPANSIONS",
    "MAX_LISTING_BYTES",
    "MAX_PATTERN_BYTES",
    "MAX_PROPERTIES",
    "MAX_SCHEMA_BYTES",
    "MAX_STEPS",
    "MAX_TOOLS",
    "GrammarWork",
    "OverLimitError",
    "Steps",
    "measure",
]

MAX_TOOLS = 1000
"""Tools of one server that are on offer."""
MAX_LISTING_BYTES = 8 * 1024 * 1024
"""All tools that one server lists, as JSON."""
MAX_SCHEMA_BYTES = 512 * 1024
"""One schema, as JSON."""
MAX_DEPTH = 100
"""Objects and arrays inside each other."""
MAX_ENUM_VALUES = 10_000
"""Values of one `enum`."""
MAX_EXPANSIONS = 10_000
"""Schemas that hold for one value once every `$ref`, `allOf`, `anyOf` and the like is written out."""
MAX_STEPS = 50_000
"""Keywords looked at while one value is checked, or places while one schema is rewritten for a grammar."""
MAX_PATTERN_BYTES = 256 * 1024
"""The compiled form of one regular expression."""
MAX_PROPERTIES = 500
"""Properties of one object in a grammar: the compiler's time grows with their square."""
MAX_COUNTED_CHARS = 4096
"""Characters in all patterns and lengths of one schema in a grammar, counts written out: up to 20 ms each."""
_MAX_TOGETHER = 4


class OverLimitError(ValueError):
    """Something from outside exceeds a limit. The message names the limit, as in 'is nested more than 100 deep'."""


class Steps:
    """Work that may go on for so many steps."""

    def __init__(self, most: int, what: str) -> None:
        self._most = self._left = most
        self._what = what

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise OverLimitError(f"takes more than {self._most} steps to {self._what}")


class GrammarWork:
    """What rewriting and compiling schemas into one grammar may take; `together`: of several schemas."""

    def __init__(self, *, together: bool = False) -> None:
        times = _MAX_TOGETHER if together else 1
        self.steps = Steps(times * MAX_STEPS, "rewrite for a grammar")
        self._chars_left = self._chars = times * MAX_COUNTED_CHARS

    def count_chars(self, chars: int) -> None:
        """Of a pattern that goes into the grammar."""
        self._chars_left -= chars
        if self._chars_left < 0:
            raise OverLimitError(f"makes a grammar count more than {self._chars} characters of patterns and lengths")


def measure(value: Any, *, most_bytes: int, most_depth: int = MAX_DEPTH) -> int:
    """About how many bytes a JSON value takes. Raises OverLimitError if they are too many or nested too deeply.

    >>> measure({"type": "object"}, most_bytes=100)
    20
    """
    size = 0
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        part, depth = pending.pop()
        if depth > most_depth:
            raise OverLimitError(f"is nested more than {most_depth} deep")
        if isinstance(part, Mapping):
            members = cast("Mapping[str, Any]", part)
            size += 2 + sum(len(name) + 4 for name in members)
            pending.extend((member, depth + 1) for member in members.values())
        elif isinstance(part, list | tuple):
            items = cast("list[Any]", part)
            size += 2 + len(items)
            pending.extend((item, depth + 1) for item in items)
        elif isinstance(part, str):
            size += len(part) + 2
        else:
            size += 4
        if size > most_bytes:
            raise OverLimitError(f"is longer than {most_bytes} bytes")
    return size
