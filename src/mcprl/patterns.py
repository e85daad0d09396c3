"""Regular expressions that come from task files and servers: searched in time linear in the text, whatever they say.

Python's own engine takes exponential time on some patterns. Rust's has no look-around and no backreferences for that
reason; a pattern with one does not compile. Pydantic has it for patterns of task files. The patterns of JSON schemas
are written in the syntax of ECMAScript, which jsonschema_rs reads for the same engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import jsonschema_rs
from pydantic_core import SchemaError, SchemaValidator, core_schema

from mcprl.bounds import MAX_PATTERN_BYTES

__all__ = ["LINEAR", "is_found", "schema_search", "why_no_pattern"]

LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
"""The engine, for validators of jsonschema_rs."""


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


@lru_cache(maxsize=1024)
def schema_search(pattern: str) -> Callable[[str], bool] | None:
    """What finds a pattern of a JSON schema in a text. None if the engine cannot do the pattern in linear time.

    >>> schema_search("^(a+)+$")("a" * 36 + "!"), schema_search("^(?!a)")
    (False, None)
    """
    try:
        is_valid = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=LINEAR).is_valid
    except ValueError:
        return None
    return lambda text: is_valid(text.encode("utf-8", "replace").decode())


@lru_cache(maxsize=4096)
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
