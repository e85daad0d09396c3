"""Regular expressions that come from task files: searched in time linear in the text, whatever they say.

Python's own engine takes exponential time on some patterns. Pydantic's is Rust's, which has no look-around and no
backreferences for that reason; a pattern with one does not compile.
"""

from __future__ import annotations

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

__all__ = ["is_found", "why_no_pattern"]


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern is found anywhere in the text.

    >>> is_found("^[A-Z]{4}$", "VLKN"), is_found("^[A-Z]{4}$", "It is VLKN.")
    (True, False)
    """
    # Half of a surrogate pair is no character that a pattern could mean.
    return _searcher(pattern).isinstance_python(text.encode("utf-8", "replace").decode())


def why_no_pattern(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    try:
        _searcher(pattern)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ").strip()
        return f"{pattern!r} is no usable regular expression: {reason}"
    return None


@lru_cache(maxsize=4096)
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
