"""Validation of values against untrusted JSON schemas, in bounded time.

The keywords of jsonschema's validator are replaced: each counts a step, `pattern` and `patternProperties` use a
linear-time regex engine, `enum` and `uniqueItems` compare hashes. Three things are not enforced: patterns that this
engine does not support, keywords that depend on whether such a pattern matches, and `unevaluatedProperties` (see
`SchemaCheck.unenforced`).
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, cast

import jsonschema_rs
from jsonschema.exceptions import ValidationError
from jsonschema.exceptions import best_match as untyped_best_match  # pyright: ignore[reportUnknownVariableType]
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema.validators import extend as untyped_extend  # pyright: ignore[reportUnknownVariableType]
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from mcprl.bounds import (
    MAX_ENUM_VALUES,
    MAX_EXPANSIONS,
    MAX_PATTERN_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_STEPS,
    OverLimitError,
    Steps,
    measure,
)

LINEAR = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES)
"""Makes validators of jsonschema_rs use the linear-time regex engine."""


@lru_cache(maxsize=1024)
def schema_search(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that searches a string for a pattern of a JSON schema, or None if that would not take linear
    time.

    >>> schema_search("^(a+)+$")("a" * 36 + "!"), schema_search("^(?!a)")
    (False, None)
    """
    try:
        is_valid = jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=LINEAR).is_valid
    except ValueError:
        return None
    return lambda text: is_valid(text.encode("utf-8", "replace").decode())


# Types are written here because the library has none.
_best_match = cast("Callable[[Iterable[ValidationError]], ValidationError | None]", untyped_best_match)
_Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

_MAX_PROBLEMS = 20
# The limit of the fast check: schemas times values. Beyond it, only the check that counts steps is used.
_MAX_FAST = 1_000_000
# Compiling a pattern takes up to 10 ms, in proportion to its length with counts expanded.
_MAX_PATTERN_STEPS = 4000
_COUNT = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
_CHARS_PER_STEP = 10
# Maximum nesting of keywords. Python's recursion limit is hit at about 250, and hitting it in a Rust library panics.
_MAX_KEYWORD_DEPTH = 150
_IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_MAPS = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef")
# These keywords may fail because an inner schema holds. If a match was only assumed, their errors are ignored.
_MAY_BLAME_A_MATCH = frozenset(("not", "oneOf", "if", "contains", "unevaluatedItems"))


class BadSchemaError(ValueError):
    """A schema is not a valid JSON schema. The message says why."""


class Checking:
    """The state of one check: its steps, and how often it had to assume that a pattern matches."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.assumed = 0
        self.depth = 0
        self._enums: dict[int, frozenset[str]] = {}

    def run(self, work: Callable[[], Any]) -> Any:
        """Call `work` and return its result. `work` may use validators made by `bounded`."""
        token = _checking.set(self)
        try:
            return work()
        finally:
            _checking.reset(token)

    def matches(self, pattern: str, text: str) -> bool:
        self.steps.spend(len(text) // _CHARS_PER_STEP)
        search = schema_search(pattern)
        if search is None:
            self.assumed += 1
            return True
        return search(text)

    def is_listed(self, value: Any, listed: list[Any]) -> bool:
        # Keyed by identity: the list belongs to a schema that outlives the check.
        if id(listed) not in self._enums:
            self.steps.spend(len(listed))
            self._enums[id(listed)] = frozenset(map(_key, listed))
        return _key(value) in self._enums[id(listed)]


_checking: ContextVar[Checking] = ContextVar("checking")


def _key(value: Any) -> str:
    """Return the same text for values that are equal in JSON Schema: 1 and 1.0, but not 1 and true."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in cast("dict[str, Any]", value).items()}
    return [_plain(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@lru_cache(maxsize=16)
def bounded(kind: type[Validator]) -> type[Validator]:
    """Return the validator class of a dialect, with keywords that count steps. Use it within `Checking.run`."""
    keywords = cast("dict[str, _Keyword]", {**cast("Any", kind).VALIDATORS, **_OWN})
    made = cast("Any", untyped_extend)(kind, {name: _counted(name, check) for name, check in keywords.items()})
    # The library's method would return to the original keywords at a `$schema` inside the schema.
    made.evolve = _evolved
    return made


def _evolved(validator: Any, **changes: Any) -> Any:
    kind = cast("Any", type(validator))
    kept = {each.alias: getattr(validator, each.name) for each in kind.__attrs_attrs__ if each.init}
    return kind(**kept | changes)


def _counted(name: str, check: _Keyword) -> _Keyword:
    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        checking = _checking.get()
        checking.steps.spend()
        if checking.depth == _MAX_KEYWORD_DEPTH:
            raise RecursionError("a schema that refers to itself endlessly")
        checking.depth += 1
        try:
            assumed = checking.assumed
            errors = check(validator, value, instance, schema) or ()
            if name in _MAY_BLAME_A_MATCH:
                errors = list(errors)
                if checking.assumed != assumed:
                    return
            yield from errors
        finally:
            checking.depth -= 1

    return counting


def _unevaluated_properties(_validator: Any, others: Any, _instance: Any, _: Any) -> Iterator[ValidationError]:
    # The library's version uses Python's regex engine, whose time is not bounded.
    _checking.get().assumed += others is not True
    return iter(())


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _checking.get().matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    checking = _checking.get()
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            # Skip a value if its name was only assumed to match the pattern.
            if checking.matches(pattern, name) and schema_search(pattern) is not None:
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, others: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    checking = _checking.get()
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        name
        for name in instance
        if name not in known and not any(checking.matches(pattern, name) for pattern in patterns)
    ]
    if validator.is_type(others, "object"):
        for name in extras:
            yield from validator.descend(instance[name], others, path=name)
    elif not others and extras:
        yield ValidationError(f"additional properties are not allowed: {', '.join(map(repr, extras[:10]))}")


def _enum(_validator: Any, listed: list[Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if not _checking.get().is_listed(instance, listed):
        yield ValidationError(f"{instance!r} is not one of the values of the enum")


def _unique_items(validator: Any, unique: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if unique and validator.is_type(instance, "array"):
        _checking.get().steps.spend(len(instance))
        if len(set(map(_key, instance))) < len(instance):
            yield ValidationError("the array has duplicate items")


_OWN: Mapping[str, _Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "enum": _enum,
    "uniqueItems": _unique_items,
    "unevaluatedProperties": _unevaluated_properties,
}


class SchemaCheck:
    """An untrusted schema, ready to check values. Raises BadSchemaError or OverLimitError if it cannot be used.

    `steps` limits the work of preparing the schema, and may be shared with other schemas.

    >>> SchemaCheck({"type": "object", "required": ["city"]}).error({}).message
    "'city' is a required property"
    """

    def __init__(self, schema: Mapping[str, Any], steps: Steps | None = None) -> None:
        steps = steps or Steps(MAX_STEPS, "read")
        schema = dict(schema)
        steps.spend(measure(schema, most_bytes=MAX_SCHEMA_BYTES) // _CHARS_PER_STEP)
        kind = validator_for(schema, default=Draft202012Validator)
        if problem := _best_match(find_problems(schema, kind)):
            raise BadSchemaError(problem.message)
        try:
            survey = _Survey(schema, kind, steps)
            # An empty registry: the library's default would fetch remote references over the network.
            self._validator = cast("Any", bounded(kind))(schema, registry=_NO_REGISTRY)
            self.unenforced = survey.unenforced
            self._weight = survey.weight
            self._is_valid = _compile_fast(schema) if self._weight <= _MAX_FAST else _never
            Checking(steps).run(lambda: next(iter(self._validator.iter_errors({})), None))
        except RecursionError as error:
            raise BadSchemaError("its references lead back to themselves, or are nested too deeply") from error

    def error(self, value: Any) -> ValidationError | None:
        """Return what is wrong with a JSON value, or None.

        Raises OverLimitError if the check takes too long, and RecursionError if the value is nested too deeply.
        """
        if self._is_surely_valid(value):
            return None
        return Checking(Steps(MAX_STEPS, "check")).run(lambda: _best_match(self._validator.iter_errors(value)))

    def _is_surely_valid(self, value: Any) -> bool:
        """Check with a library that is 100 times faster. True is reliable; after False, the full check decides."""
        try:
            measure(value, most_bytes=_MAX_FAST // self._weight)
            return self._is_valid(value)
        except (ValueError, OverflowError):  # too long, too deep, or invalid Unicode
            return False


_NO_REGISTRY: Registry[Any] = Registry()


def _compile_fast(schema: dict[str, Any]) -> Callable[[Any], bool]:
    try:
        return jsonschema_rs.validator_for(
            schema, validate_formats=False, offline=True, pattern_options=LINEAR
        ).is_valid
    except ValueError:
        return _never  # an unsupported regular expression


def _never(_: Any) -> bool:
    return False


@lru_cache(maxsize=16)
def _is_schema(kind: type[Validator]) -> Callable[[Any], bool]:
    try:
        return jsonschema_rs.validator_for(cast("Any", kind).META_SCHEMA, validate_formats=False).is_valid
    except ValueError:
        return _never  # an unsupported dialect


def find_problems(schema: Mapping[str, Any], kind: type[Validator]) -> tuple[ValidationError, ...]:
    """Return the first reasons why a schema is invalid in a dialect, or nothing if it is valid."""
    if _is_schema(kind)(schema):  # 100 times faster, but gives no reasons
        return ()
    validator = cast("Any", bounded(kind))(cast("Any", kind).META_SCHEMA)
    errors = cast("Iterator[ValidationError]", validator.iter_errors(schema))
    return Checking(Steps(MAX_STEPS, "read")).run(lambda: tuple(itertools.islice(errors, _MAX_PROBLEMS)))


class _Survey:
    """Facts about a schema before it is used: its expanded size, its patterns, and whether its references resolve.

    `weight` is the number of schemas after all references are expanded. If they are recursive, it is above the limit of
    the fast check.
    """

    def __init__(self, schema: dict[str, Any], kind: type[Validator], steps: Steps) -> None:
        self._kind = kind
        self._steps = steps
        self._in_place: dict[int, list[Any]] = {}
        self._all: dict[int, list[Any]] = {}
        self._has_unevaluated = False
        self._patterns: dict[str, None] = {}
        self._walk(schema)
        if max(_unfolded(self._in_place).values(), default=1) > MAX_EXPANSIONS:
            raise OverLimitError(
                f"has more than {MAX_EXPANSIONS} schemas in a single position once its references are expanded"
            )
        weights = _unfolded(self._all, cycles=_MAX_FAST + 1)
        self.weight = weights.get(id(schema), 1)
        self.unenforced = tuple(f"the pattern {each!r}" for each in self._patterns if not self._is_linear(each))
        self.unenforced += ("unevaluatedProperties",) * self._has_unevaluated

    def _walk(self, schema: dict[str, Any]) -> None:
        dialect = schema.get("$schema")
        specification = specification_with(dialect, default=DRAFT202012) if isinstance(dialect, str) else DRAFT202012
        root: Resource[Any] = Resource(contents=schema, specification=specification)
        registry = _NO_REGISTRY.with_resource("", root).crawl()
        pending = [(root, registry.resolver_with_root(root))]
        while pending:
            resource, resolver = pending.pop()
            contents = resource.contents
            if not isinstance(contents, dict) or id(cast("object", contents)) in self._all:
                continue
            self._steps.spend()
            contents = cast("dict[str, Any]", contents)
            parts = list(resource.subresources())
            targets: list[Any] = []
            for reference in (contents[keyword] for keyword in _REFERENCES if isinstance(contents.get(keyword), str)):
                try:
                    resolved = resolver.lookup(reference)
                except Unresolvable as error:
                    raise BadSchemaError(f"it refers to {reference!r}, which it does not define") from error
                target: Any = resolved.contents
                if type(target) not in (dict, bool) or find_problems(target, self._kind):
                    raise BadSchemaError(f"it refers to {reference!r}, which is not a schema")
                targets.append(target)
                pending.append((Resource(contents=target, specification=specification), resolved.resolver))
            self._note(contents, targets, [part.contents for part in parts])
            pending.extend((part, resolver.in_subresource(part)) for part in parts)

    def _note(self, contents: dict[str, Any], targets: list[Any], parts: list[Any]) -> None:
        if len(cast("list[Any]", contents.get("enum", ()))) > MAX_ENUM_VALUES:
            raise OverLimitError(f"has an enum of more than {MAX_ENUM_VALUES} values")
        inner = [each for keyword in _IN_PLACE_LISTS for each in contents.get(keyword, ())]
        inner += [contents[keyword] for keyword in _IN_PLACE if keyword in contents]
        inner += [each for keyword in _IN_PLACE_MAPS for each in contents.get(keyword, {}).values()]
        self._in_place[id(contents)] = [*targets, *inner]
        self._all[id(contents)] = [*targets, *parts]
        self._has_unevaluated |= contents.get("unevaluatedProperties", True) is not True
        names = cast("dict[str, Any]", contents.get("patternProperties", {}))
        self._patterns |= dict.fromkeys([*names, *([contents["pattern"]] if "pattern" in contents else [])])

    def _is_linear(self, pattern: str) -> bool:
        """Return whether the linear engine supports a pattern. If no engine supports it, the schema is invalid."""
        counts = [max(int(low), int(high or 0), 1) for low, high in _COUNT.findall(pattern)]
        self._steps.spend(min(_MAX_PATTERN_STEPS, 50 + len(pattern) * math.prod(counts)))
        if schema_search(pattern) is not None:
            return True
        try:
            re.compile(pattern)
        except (re.error, OverflowError, ValueError) as error:
            raise BadSchemaError(f"{pattern!r} is not a 'regex': {error}") from error
        return False


def _unfolded(inner: Mapping[int, list[Any]], cycles: int = 0) -> dict[int, int]:
    """Return how many schemas each schema has after expansion, itself included. Recursion counts as `cycles`."""
    counts: dict[int, int] = {}
    under_way: set[int] = set()

    def count(key: int) -> int:
        if key in under_way:
            return cycles
        if key not in counts:
            under_way.add(key)
            counts[key] = 1 + sum(count(id(each)) if id(each) in inner else 1 for each in inner[key])
            under_way.discard(key)
        return counts[key]

    for key in inner:
        count(key)
    return counts
