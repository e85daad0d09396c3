"""Limits on untrusted input: recipes, task files, schemas, patterns, chat templates and cassettes.

Every reader of such input takes its limits from here, and turns an OverLimitError into an error with a code. What is
within the limits is read in about a second of processor time, and in memory in proportion to its size.
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
"""Nested objects and arrays, in JSON and YAML."""
MAX_FILE_BYTES = 1024**3
"""A file that is read whole: tasks, a preamble, servers, recorded conversations."""
MAX_RECIPE_BYTES = 64 * 1024
"""A recipe, or the value of one --set."""
MAX_RECIPE_NODES = 10_000
"""Values in a recipe with every alias expanded."""
MAX_NUMBER, MIN_NUMBER = 1e9, 1e-12
"""The largest number in a recipe, and the smallest above 0: what float32 computes with. Seeds may be larger."""
MAX_PATTERN_CHARS = 4096
"""One regular expression of a task file or a recipe, or of a schema in a grammar."""
MAX_TEMPLATE_CHARS = 64 * 1024
"""A chat template."""
MAX_TEMPLATE_OUTPUT = 1024 * 1024
"""Each text and each list that a chat template produces."""
MAX_TEMPLATE_S = 1.5
"""Processor time of rendering a chat template; for loading it, of all renderings together."""
MAX_CASSETTE_VALUE_BYTES = 64 * 1024 * 1024
"""One value in a cassette: an answer, or the tools of a server."""
MAX_CASSETTE_STEPS = 20
"""SQLite's steps in one statement, per byte of the cassette. Reading all recordings takes about 2."""
MAX_TOOLS = 1000
"""Tools on offer from one server."""
MAX_LISTING_BYTES = 8 * 1024 * 1024
"""All tools that one server lists, as JSON."""
MAX_SCHEMA_BYTES = 512 * 1024
"""One schema, as JSON."""
MAX_ENUM_VALUES = 10_000
"""Values of one `enum`."""
MAX_EXPANSIONS = 10_000
"""Schemas that apply to one value once every `$ref`, `allOf`, `anyOf` and the like is expanded."""
MAX_STEPS = 50_000
"""Keywords evaluated while one value is checked, or places visited while one schema is rewritten for a grammar."""
MAX_PATTERN_BYTES = 256 * 1024
"""The compiled form of one regular expression."""
MAX_PROPERTIES = 500
"""Properties of one object in a grammar: compile time grows with their square."""
MAX_COUNTED_CHARS = 4096
"""Characters in all patterns and lengths of one schema in a grammar, with counts expanded: up to 20 ms each."""
_MAX_TOGETHER = 4


class OverLimitError(ValueError):
    """Untrusted input exceeds a limit. The message names the limit, as in 'is nested more than 100 deep'."""


class Steps:
    """A budget of steps."""

    def __init__(self, most: int, what: str) -> None:
        self._most = self._left = most
        self._what = what

    def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise OverLimitError(f"takes more than {self._most} steps to {self._what}")


class GrammarWork:
    """The budget for rewriting and compiling one schema into a grammar, or several schemas (`together`)."""

    def __init__(self, *, together: bool = False) -> None:
        times = _MAX_TOGETHER if together else 1
        self.steps = Steps(times * MAX_STEPS, "rewrite for a grammar")
        self._chars_left = self._chars = times * MAX_COUNTED_CHARS

    def count_chars(self, chars: int) -> None:
        """Spend the characters of a pattern in the grammar."""
        self._chars_left -= chars
        if self._chars_left < 0:
            raise OverLimitError(f"makes a grammar count more than {self._chars} characters of patterns and lengths")


def measure(value: Any, *, most_bytes: int, most_depth: int = MAX_DEPTH) -> int:
    """The approximate size of a JSON value in bytes. Raises OverLimitError if it is too long or nested too deeply.

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


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern is found anywhere in the text.

    >>> is_found("^[A-Z]{4}$", "VLKN"), is_found("^[A-Z]{4}$", "It is VLKN.")
    (True, False)
    """
    # Half of a surrogate pair is not a character, and no pattern can match it.
    return _searcher(pattern).isinstance_python(text.encode("utf-8", "replace").decode())


def why_no_pattern(pattern: str) -> str | None:
    """What is wrong with a pattern, or None."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"a regular expression of more than {MAX_PATTERN_CHARS} characters"
    try:
        _searcher(pattern)
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].removeprefix("error: ").strip()
        return f"{pattern!r} is not a usable regular expression: {reason}"
    return None


@lru_cache(maxsize=4096)
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file. Raises OSError, or ValueError if it is not UTF-8 or too long."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OverLimitError(f"is longer than {most_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8 text") from error


def decode_json(text: str, decoder: json.JSONDecoder | None = None, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and its end. Raises ValueError: json.JSONDecodeError if it is not JSON.

    >>> decode_json('{"a": 1} x')
    ({'a': 1}, 8)
    """
    try:
        value, end = (decoder or _DECODER).raw_decode(text, start)
    except RecursionError as error:
        raise OverLimitError(f"is nested more than {MAX_DEPTH} deep") from error
    if text.count("[", start, end) + text.count("{", start, end) > MAX_DEPTH:  # few values are that large
        measure(value, most_bytes=MAX_FILE_BYTES)
    return value, end


_DECODER = json.JSONDecoder()


def read_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """A YAML document as a tree with line numbers, and as values. Raises yaml.YAMLError with the place, if it has one.

    Aliases count as if they were expanded, and none may refer to a value that contains it.

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
    """Counts the nodes of a document, and gives every error its place."""

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
            raise yaml.constructor.ConstructorError(None, None, f"nested more than {MAX_DEPTH} deep", mark)
        if self._nodes > MAX_RECIPE_NODES:
            why = f"more than {MAX_RECIPE_NODES} values once aliases are expanded"
            raise yaml.constructor.ConstructorError(None, None, why, mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value: Any = cast("Any", super()).construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # What the library raises for `!!bool x`, `!!int ''`, `!!timestamp x` and 2026-99-99.
            kind = str(node.tag).rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {kind}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
            raise yaml.constructor.ConstructorError(None, None, "a number that is too long", node.start_mark)
        return value


_MAX_INTEGER_BITS = 128


class _OutOfTime(BaseException):
    """Not an Exception, so that no handler in the limited code keeps it."""


@contextmanager
def limited_time(seconds: float, doing: str, *, file: str) -> Generator[None]:
    """Stop code of this thread if it takes more than `seconds` of processor time. Raises OverLimitError.

    The clock is read at each line of the Python file `file`, and whenever a Python function is called. What such a line
    does in C must be limited by the size of its input.
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
        raise OverLimitError(f"takes more than {seconds:g} s of processor time to {doing}") from None
    finally:
        sys.settrace(before)
