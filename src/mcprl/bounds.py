"""Limits on untrusted input: recipes, task files, schemas, patterns, chat templates and cassettes.

Every reader of such input uses these limits, and turns an OverLimitError into an error with a code. The limits
bound the CPU time of reading, and keep the memory it takes in proportion to the size of the input.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, cast

import yaml
from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_DEPTH = 100
"""Maximum nesting of objects and arrays, in JSON and YAML."""
MAX_FILE_BYTES = 1024**3
"""Maximum size of a task file, a preamble, an mcpServers file, or a file of recorded conversations."""
MAX_RECIPE_BYTES = 64 * 1024
"""Maximum size of a recipe, or of the value of one --set."""
MAX_RECIPE_NODES = 10_000
"""Maximum number of values in a recipe after every alias is expanded."""
MAX_NUMBER, MIN_NUMBER = 1e9, 1e-12
"""The largest number in a recipe, and the smallest above 0: both fit into float32. Seeds may be larger."""
MAX_PATTERN_CHARS = 4096
"""Maximum length of one regular expression in a task file, a recipe, or a schema used in a grammar."""
MAX_TEMPLATE_CHARS = 64 * 1024
"""Maximum length of a chat template."""
MAX_TEMPLATE_OUTPUT = 1024 * 1024
"""Maximum length of each string and each list that a chat template produces."""
MAX_TEMPLATE_S = 1.5
"""Maximum CPU time for one rendering of a chat template; while a template is loaded, for all renderings together.
"""
MAX_CASSETTE_VALUE_BYTES = 64 * 1024 * 1024
"""Maximum size of one value in a cassette: a tool's response, or the tool list of a server."""
MAX_CASSETTE_STEPS = 20
"""Maximum number of SQLite steps per statement, per byte of the cassette. Reading all recordings takes about 2."""
MAX_TOOLS = 1000
"""Maximum number of tools of one server."""
MAX_LISTING_BYTES = 8 * 1024 * 1024
"""Maximum total size of the tools that one server lists, as JSON."""
MAX_SCHEMA_BYTES = 512 * 1024
"""Maximum size of one schema, as JSON."""
MAX_ENUM_VALUES = 10_000
"""Maximum number of values in one `enum`."""
MAX_EXPANSIONS = 10_000
"""Maximum number of schemas that apply to one value after every `$ref`, `allOf`, `anyOf` and the like is expanded."""
MAX_STEPS = 50_000
"""Maximum number of keywords evaluated per value, or of subschemas visited to rewrite one schema for a grammar."""
MAX_PATTERN_BYTES = 256 * 1024
"""Maximum size of one regular expression after compilation."""
MAX_PROPERTIES = 500
"""Maximum number of properties of one object in a grammar. Compile time grows with the square of this number."""
MAX_COUNTED_CHARS = 4096
"""Maximum number of characters that the patterns and length limits of one schema expand to. Compiling a character takes
up to 20 ms."""
_MAX_TOGETHER = 4


class OverLimitError(ValueError):
    """Untrusted input exceeds a limit. The message names the limit, as in 'is nested more than 100 levels deep'."""


class Steps:
    """A limit on the number of steps of some work. Exceeding it raises OverLimitError."""

    def __init__(self, most: int, what: str) -> None:
        self._most = self._left = most
        self._what = what

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise OverLimitError(f"takes more than {self._most} steps to {self._what}")


class GrammarWork:
    """Limits on rewriting and compiling one schema into a grammar, or several schemas (`together`)."""

    def __init__(self, *, together: bool = False) -> None:
        times = _MAX_TOGETHER if together else 1
        self.steps = Steps(times * MAX_STEPS, "convert to a grammar")
        self._chars_left = self._chars = times * MAX_COUNTED_CHARS

    def count_chars(self, chars: int) -> None:
        """Count the characters of a pattern against the limit."""
        self._chars_left -= chars
        if self._chars_left < 0:
            raise OverLimitError(
                f"has patterns and length limits that expand to over {self._chars} characters, too many for a grammar"
            )


def measure(value: Any, *, most_bytes: int, most_depth: int = MAX_DEPTH) -> int:
    """Return the approximate size of a JSON value in bytes. Raises OverLimitError if it is too large or nested too
    deeply.

    >>> measure({"type": "object"}, most_bytes=100)
    20
    """
    size = 0
    pending: list[tuple[Any, int]] = [(value, 1)]
    while pending:
        part, depth = pending.pop()
        if depth > most_depth:
            raise OverLimitError(f"is nested more than {most_depth} levels deep")
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


def is_found(pattern: str, text: str) -> bool:
    """Return whether the pattern matches anywhere in the text.

    >>> is_found("^[A-Z]{4}$", "VLKN"), is_found("^[A-Z]{4}$", "It is VLKN.")
    (True, False)
    """
    # Half of a surrogate pair is not a character, and no pattern can match it.
    return _searcher(pattern).isinstance_python(text.encode("utf-8", "replace").decode())


def why_no_pattern(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None if it can be used."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"a regular expression of more than {MAX_PATTERN_CHARS} characters"
    try:
        _searcher(pattern)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ").strip()
        return f"{pattern!r} is not a usable regular expression: {reason}"
    return None


def usable_pattern(pattern: str) -> str:
    """Return a pattern that can be used. Raises ValueError for any other."""
    problem = why_no_pattern(pattern)
    if problem is not None:
        raise ValueError(problem)
    return pattern


@lru_cache(maxsize=4096)
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file. Raises OSError, or ValueError if it is not UTF-8 or too long."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OverLimitError(f"is longer than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8 text") from error


def decode_json(text: str, decoder: json.JSONDecoder | None = None, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and the index after it. Raises ValueError
    (json.JSONDecodeError if it is not JSON).

    >>> decode_json('{"a": 1} x')
    ({'a': 1}, 8)
    """
    try:
        value, end = (decoder or _DECODER).raw_decode(text, start)
    except RecursionError as error:
        raise OverLimitError(f"is nested more than {MAX_DEPTH} levels deep") from error
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:  # few values are so large
        measure(value, most_bytes=MAX_FILE_BYTES)
    return value, end


_DECODER = json.JSONDecoder()


def read_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Return a YAML document as a tree with line numbers, and as values. Raises yaml.YAMLError, with the line if known.

    Aliases count as if they were expanded. An alias may not refer to a value that contains the alias.

    >>> read_yaml("a: &x [1, 2]\nb: *x")[1]
    {'a': [1, 2], 'b': [1, 2]}
    """
    if len(text) > MAX_RECIPE_BYTES:
        raise yaml.YAMLError(f"it is longer than {MAX_RECIPE_BYTES} bytes")
    loader = _Loader(text)
    try:
        node = cast("yaml.Node | None", cast("Any", loader).get_single_node())
        # Merging `<<` changes the tree.
        tree = copy.deepcopy(node)
        return tree, None if node is None else cast("Any", loader).construct_document(node)
    finally:
        cast("Any", loader).dispose()


class _Loader(yaml.SafeLoader):
    """Loads a document, counts its nodes, and adds the line to every error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0
        # The number of nodes and the depth of each finished node.
        self._sizes: dict[int, tuple[int, int]] = {}
        self._deepest = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = cast("Any", self).peek_event().start_mark
        is_alias = self.check_event(yaml.AliasEvent)
        nodes_before, deepest_before = self._nodes, self._deepest
        self._nodes += 1
        self._depth += 1
        self._deepest = self._depth
        self._check(mark)
        node = cast("Any", super()).compose_node(parent, index)
        if is_alias:
            if id(node) not in self._sizes:
                raise yaml.constructor.ConstructorError(None, None, "an alias that contains itself", mark)
            nodes, depth = self._sizes[id(node)]
            self._nodes += nodes
            self._deepest = self._depth + depth
            self._check(mark)
        else:
            self._sizes[id(node)] = (self._nodes - nodes_before, self._deepest - self._depth)
        self._depth -= 1
        self._deepest = max(self._deepest, deepest_before)
        return node

    def _check(self, mark: Any) -> None:
        if self._deepest > MAX_DEPTH:
            raise yaml.constructor.ConstructorError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        if self._nodes > MAX_RECIPE_NODES:
            why = f"more than {MAX_RECIPE_NODES} values once aliases are expanded"
            raise yaml.constructor.ConstructorError(None, None, why, mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value: Any = cast("Any", super()).construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # The library raises these for `!!bool x`, `!!int ''`, `!!timestamp x` and 2026-99-99.
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {kind}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
            raise yaml.constructor.ConstructorError(None, None, "a number with too many digits", node.start_mark)
        return value


_MAX_INTEGER_BITS = 128


class _OutOfTime(BaseException):
    """Raised when the time is up. It is not an Exception, so that no handler in the limited code catches it."""


@contextmanager
def limited_time(seconds: float, doing: str, *, file: str) -> Generator[None]:
    """Stop the code in this context if it takes more than `seconds` of CPU time. Raises OverLimitError.

    The clock is read at each line of the Python file `file`, and at each call to a Python function. C code that such
    a line calls is not interrupted, so its input must be small.
    """
    end = time.thread_time() + seconds

    def look(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        if time.thread_time() > end:
            raise _OutOfTime
        return look if frame.f_code.co_filename == file else None

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    except _OutOfTime:
        raise OverLimitError(f"takes more than {seconds:g} s of CPU time to {doing}") from None
    finally:
        sys.settrace(before)
