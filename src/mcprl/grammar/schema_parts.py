"""Finds all subschemas of a tool's schema that apply to one value, with the path of each.

One value is often described by several schemas, because `$ref` and `allOf` add more. `Document.gather` lists them all,
so the code that rewrites a schema sees every keyword that applies to a value, together with its path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, cast
from urllib.parse import quote, unquote

from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from mcprl.bounds import GrammarWork
from mcprl.grammar.patterns import (
    ANY_TEXT,
    MAX_COUNT,
    Pattern,
    is_too_large,
    num_chars,
    read_pattern,
    with_length,
    write_pattern,
)
from mcprl.schemas import Checking, bounded

# All other keywords are annotations that reject no value.
_ASSERTIONS = frozenset(
    (
        *("type", "enum", "const", "not", "if", "anyOf", "oneOf", "$dynamicRef", "$recursiveRef"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
    )
)


@dataclass(frozen=True, slots=True)
class Unheld:
    """A keyword of a schema that a grammar does not enforce.

    Unheld(path="/properties/tags", keyword="uniqueItems", why="a grammar cannot compare items")
    """

    path: str
    keyword: str
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """A subschema and its path, without the keywords in `done`. If `made`, we generated it: it is not in the tool's
    schema.

    Part(path="/properties/tags", schema={"type": "array", "uniqueItems": True})
    """

    path: str
    schema: Mapping[str, Any] | bool
    done: frozenset[str] = frozenset()
    made: bool = False

    def __contains__(self, keyword: str) -> bool:
        return isinstance(self.schema, Mapping) and keyword in self.schema and keyword not in self.done

    def get(self, keyword: str, default: Any = None) -> Any:
        return cast("Mapping[str, Any]", self.schema)[keyword] if keyword in self else default

    def at(self, *steps: str | int) -> Part:
        """Return the subschema that these steps lead to."""
        inner: Any = self.schema
        for step in steps:
            inner = inner[step]
        return Part(self.path + "".join("/" + _escaped(str(step)) for step in steps), inner)

    def without(self, keyword: str) -> Part:
        return replace(self, done=self.done | {keyword})

    @property
    def key(self) -> tuple[str, frozenset[str], bool]:
        """Return an identifier that is unique among the parts of a document."""
        return self.path, self.done, self.made

    @property
    def keywords(self) -> tuple[str, ...]:
        """Return the keywords that may reject a value."""
        schema: Mapping[str, Any] = {} if isinstance(self.schema, bool) else self.schema
        return tuple(keyword for keyword in schema if keyword in _ASSERTIONS - self.done)


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


@dataclass
class Findings:
    """Problems found while a schema is rewritten. Each keyword at a path is listed once.

    `unheld`: the grammar allows values that the schema rejects, or cannot write any value that the schema allows.
    `dead_ends`: the schema itself rejects every value at this path.
    `work`: the remaining work budget.
    """

    unheld: dict[tuple[str, str], Unheld] = field(default_factory=dict[tuple[str, str], Unheld])
    dead_ends: list[Unheld] = field(default_factory=list[Unheld])
    work: GrammarWork = field(default_factory=GrammarWork)

    def add(self, part: Part, keyword: str, why: str) -> None:
        self.unheld.setdefault((part.path, keyword), Unheld(part.path, keyword, why))

    def add_all(self, parts: Sequence[Part], keywords: Collection[str], why: str) -> None:
        """Report each of the keywords in each part that has it."""
        for keyword in keywords:
            for part in parts:
                if keyword in part:
                    self.add(part, keyword, why)

    def add_dead_end(self, parts: Collection[Part], keywords: Collection[str], why: str) -> None:
        """Report that no value is valid here. The message names the first part that has one of the keywords."""
        found = ((part, keyword) for part in parts for keyword in keywords if keyword in part and not part.made)
        for part, keyword in found:
            self.dead_ends.append(Unheld(part.path, keyword, why))
            return


class Document:
    """One tool's schema. Resolves its references, and validates values against any part of it."""

    def __init__(self, root: Mapping[str, Any], findings: Findings) -> None:
        self.root = Part("", {key: value for key, value in root.items() if key != "$id"})
        self._findings = findings
        self._has_inner_id = '"$id": "' in json.dumps(self.root.schema)
        empty: Registry[Any] = Registry()
        self._registry = empty.with_resource("urn:tool", DRAFT202012.create_resource(self.root.schema))
        self.steps = findings.work.steps
        self._checking = Checking(self.steps)
        self._validators: dict[object, Validator] = {}

    def is_valid(self, value: Any, part: Part, *, unsure: bool) -> bool:
        """Return whether a value is valid against a part of the original schema.

        Returns `unsure` if that cannot be decided, because a reference cannot be followed or a pattern cannot be
        searched in linear time.
        """
        if part.key not in self._validators:
            schema = part.schema if part.made else {"$ref": "urn:tool#" + quote(part.path)}
            self._validators[part.key] = cast("Any", bounded(Draft202012Validator))(schema, registry=self._registry)
        assumed = self._checking.assumed
        try:
            valid = bool(self._checking.run(lambda: self._validators[part.key].is_valid(value)))
        except (Unresolvable, RecursionError):
            return unsure
        return valid if self._checking.assumed == assumed else unsure

    def gather(self, parts: Sequence[Part]) -> tuple[tuple[Part, ...], bool]:
        """Return these parts with all that `allOf` and `$ref` lead to, and whether a reference was followed."""
        gathered: list[Part] = []
        seen: set[object] = set()
        followed = False
        nobody: frozenset[str] = frozenset()
        pending = [(part, nobody) for part in parts]
        while pending:
            self.steps.spend()
            part, outer = pending.pop(0)
            if part.path in outer:
                self._findings.add(part, "$ref" if "$ref" in part else "allOf", "it refers back to itself")
            if part.key in seen:
                continue
            seen.add(part.key)
            if part.keywords or part.schema is False:
                gathered.append(part.without("allOf").without("$ref"))
            inner = [part.at("allOf", index) for index in range(len(part.get("allOf", ())))]
            if "$ref" in part and (target := self._target(part)) is not None:
                inner.append(target)
                followed = True
            pending = [(each, outer | {part.path}) for each in inner] + pending
        return tuple(gathered), followed

    def _target(self, part: Part) -> Part | None:
        reference = str(part.get("$ref"))
        if reference != "#" and not reference.startswith("#/"):
            self._findings.add(part, "$ref", "only references within the schema (#/…) are supported")
            return None
        if self._has_inner_id:
            self._findings.add(part, "$ref", "an $id inside the schema changes the meaning of references")
            return None
        steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]
        target: Any = self.root.schema
        for step in steps:
            target = _stepped(target, step)
        if not isinstance(target, (bool, Mapping)):
            self._findings.add(part, "$ref", "it does not refer to a schema")
            return None
        path = "".join("/" + _escaped(step) for step in steps)
        return Part(path, cast("Mapping[str, Any] | bool", target))


def _stepped(target: Any, step: str) -> Any:
    if isinstance(target, Mapping):
        return cast("Mapping[str, Any]", target).get(step)
    if isinstance(target, list) and step.isdecimal() and int(step) < len(cast("list[Any]", target)):
        return cast("list[Any]", target)[int(step)]
    return None


_MAX_INTEGER = 2**63 - 1
_MAX_NUMBER = 2**53
_MAX_FINE_NUMBER = 10**9  # above this, a float cannot distinguish numbers with six decimals
_FINEST = Decimal("0.000001")
_MAX_DIVISOR = 1024
_LOWS, _HIGHS = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")

# Formats whose grammar can neither write a marker nor break the JSON. Others are dropped, as `format` rejects nothing.
_SAFE_FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid")
)


def number_schema(parts: Sequence[Part], findings: Findings, *, whole: bool) -> dict[str, Any] | None:
    """Return the schema of a number within its bounds, or of an integer that is a multiple of its divisors.

    With `whole`, the number is an integer.
    """
    divisors: set[int] = set()
    for part in parts:
        divisor = part.get("multipleOf", 1)
        if divisor == int(divisor):
            divisors |= {int(divisor)} if "multipleOf" in part else set()
        else:
            findings.add(part, "multipleOf", "a grammar cannot express multiples of a fraction")
    whole = whole or bool(divisors)
    bounds = _bounds(parts, findings, whole=whole)
    if bounds is None:
        return None
    divisor = math.lcm(*divisors)
    if divisor > 1 and not bounds and divisor <= _MAX_DIVISOR:
        return {"type": "integer", "multipleOf": divisor}
    if divisor > 1:
        why = f"a grammar can express multipleOf only up to {_MAX_DIVISOR} and without minimum or maximum"
        findings.add_all(parts, ("multipleOf",), why)
    # Without bounds, a number could have an exponent too large for a float, or any number of digits.
    most = _MAX_INTEGER if whole else _MAX_NUMBER
    return {"type": "integer" if whole else "number", "minimum": -most, "maximum": most, **bounds}


def _bounds(parts: Sequence[Part], findings: Findings, *, whole: bool) -> dict[str, Any] | None:
    """Return the tightest bounds, moved inward to numbers that the grammar can write. None if no number is left."""
    most = _MAX_INTEGER if whole else _MAX_NUMBER
    asked = {
        keyword: [Decimal(str(part.get(keyword))) for part in parts if keyword in part] for keyword in _LOWS + _HIGHS
    }
    lows = [_inward(bound, ROUND_CEILING, keyword, whole) for keyword in _LOWS for bound in asked[keyword]]
    highs = [_inward(bound, ROUND_FLOOR, keyword, whole) for keyword in _HIGHS for bound in asked[keyword]]
    bounds: dict[str, Any] = {}
    if lows:
        bounds["minimum"] = max(*lows, -most)
    if highs:
        bounds["maximum"] = min(*highs, most)
    low, high = bounds.get("minimum", -most), bounds.get("maximum", most)
    if low > most or high < -most:
        findings.add_all(parts, _LOWS if low > most else _HIGHS, f"it is beyond ±{most}, the limit for a grammar")
        return {}
    if low > high:
        asked_low, asked_high = ([bound for each in side for bound in asked[each]] for side in (_LOWS, _HIGHS))
        if not whole and max(asked_low) < min(asked_high):
            findings.add_all(
                parts,
                _LOWS + _HIGHS,
                "a grammar allows at most six decimals, and no such number lies between the bounds",
            )
            return {}
        return findings.add_dead_end(parts, _LOWS + _HIGHS, "no number lies between the bounds")
    return bounds


def _inward(bound: Decimal, rounding: str, keyword: str, whole: bool) -> int | float:
    """Return the bound, or the next number inward that is allowed and that a grammar can write."""
    step = Decimal(1) if whole or abs(bound) >= _MAX_FINE_NUMBER else _FINEST
    steps = (bound / step).to_integral_value(rounding)
    if keyword.startswith("exclusive") and steps * step == bound:
        steps += 1 if rounding == ROUND_CEILING else -1
    inward = steps * step
    return int(inward) if inward == int(inward) else float(inward)


def string_schema(parts: Sequence[Part], findings: Findings, *, escapes: bool) -> dict[str, Any] | None:
    """Return the schema of a string with its pattern, format and length limits."""
    least = max((int(part.get("minLength")) for part in parts if "minLength" in part), default=0)
    most = min((int(part.get("maxLength")) for part in parts if "maxLength" in part), default=None)
    if most is not None and least > most:
        return findings.add_dead_end(parts, ("minLength", "maxLength"), "no string can have this length")
    tree = _tree(parts, findings)
    counted = with_length(tree, least, most)
    if counted is None or is_too_large(counted):
        why = (
            f"a grammar can count at most {MAX_COUNT} characters"
            if counted
            else "a grammar cannot limit the length of strings with this pattern"
        )
        findings.add_all(parts, ("minLength", "maxLength"), why)
        counted = tree
    if counted == ANY_TEXT:
        formats = {str(part.get("format")) for part in parts if "format" in part} & _SAFE_FORMATS
        return {"type": "string"} | ({"format": formats.pop()} if len(formats) == 1 else {})
    findings.work.count_chars(num_chars(counted))
    written = write_pattern(counted, escapes=escapes)
    if written is None:
        if write_pattern(counted, escapes=True) is not None:
            why = "every matching string contains a character that cannot be written in a call"
            findings.add_all(parts, ("pattern",), why)
            return {"type": "string"}
        return findings.add_dead_end(parts, ("pattern",), "no string matches both the pattern and the length")
    return {"type": "string", "pattern": written}


def _tree(parts: Sequence[Part], findings: Findings) -> Pattern:
    """Return the pattern of the parts. A grammar cannot enforce two at once, so a second one is reported."""
    patterns: dict[str, Part] = {}
    for part in parts:
        if "pattern" in part:
            patterns.setdefault(part.get("pattern"), part)
    tree: Pattern = ANY_TEXT
    for pattern, part in patterns.items():
        try:
            another = read_pattern(pattern)
        except ValueError as error:
            findings.add(part, "pattern", f"a grammar cannot express {error}")
            continue
        if is_too_large(another):
            findings.add(part, "pattern", f"a grammar can count at most {MAX_COUNT} characters")
            continue
        if tree != ANY_TEXT and another != ANY_TEXT:
            findings.add(part, "pattern", "a grammar cannot express two patterns at once")
        tree = another if tree == ANY_TEXT else tree
    return tree


Schema = dict[str, Any]

_MAX_DEPTH = 6


class Branches:
    """Checks that in a rewritten schema, `oneOf` branches exclude each other and each definition has a finite value."""

    def __init__(self, document: Document, findings: Findings, definitions: Mapping[str, Schema | None]) -> None:
        self._document = document
        self._findings = findings
        self._definitions = definitions
        self.one_ofs: list[tuple[Part, Sequence[Schema | None]]] = []
        """Each `oneOf` with its rewritten branches."""
        self.parts: dict[str, Sequence[Part]] = {}
        """The parts of each definition, by its name."""

    def check(self) -> None:
        for part, written in self.one_ofs:
            self._check_one_of(part, written)
        why = "the schema recurses without end: every value must contain another value of the same schema"
        for name in self._endless():
            self._findings.add_all(self.parts[name], ("required", "minItems", "anyOf", "oneOf"), why)

    def _check_one_of(self, part: Part, branches: Sequence[Schema | None]) -> None:
        for index, written in enumerate(branches):
            for other in range(len(branches)):
                if other == index or written is None or self._differs(written, part.at("oneOf", other), 0):
                    continue
                why = f"a value may match both branch {min(index, other)} and branch {max(index, other)}"
                self._findings.add(part, "oneOf", why)
                return

    def _differs(self, written: Schema, branch: Part, depth: int) -> bool:
        """Return whether no value of the rewritten schema is valid against this branch of the original schema."""
        self._document.steps.spend()
        if "$ref" in written:
            target = self._definitions[written["$ref"].removeprefix("#/$defs/")]
            return target is None or (depth < _MAX_DEPTH and self._differs(target, branch, depth + 1))
        if "anyOf" in written:
            return all(self._differs(option, branch, depth) for option in written["anyOf"])
        if "enum" in written:
            return not any(self._document.is_valid(value, branch, unsure=True) for value in written["enum"])
        parts, _ = self._document.gather((branch,))
        return any(self._differs_from_part(written, part, depth) for part in parts)

    def _differs_from_part(self, written: Schema, part: Part, depth: int) -> bool:
        if part.schema is False:
            return True
        for keyword in ("anyOf", "oneOf"):
            branches = [part.at(keyword, index) for index in range(len(part.get(keyword, ())))]
            if branches and depth < _MAX_DEPTH and all(self._differs(written, each, depth + 1) for each in branches):
                return True
        kind = written.get("type")
        if kind is None:
            return False
        kinds = _kinds_of(part)
        if kinds is not None and not _kinds(kind) & kinds:
            return True
        return kind == "object" and "properties" in written and self._objects_differ(written, part, depth)

    def _objects_differ(self, written: Schema, part: Part, depth: int) -> bool:
        properties: dict[str, Schema] = written["properties"]
        needed: list[str] = part.get("required", [])
        if any(name not in properties for name in needed):
            return True
        certain = {*needed, *written.get("required", ())}
        return depth < _MAX_DEPTH and any(
            self._differs(properties[name], part.at("properties", name), depth + 1)
            for name in part.get("properties", {})
            if name in certain and name in properties
        )

    def _endless(self) -> list[str]:
        """Return the definitions that no finite value satisfies."""
        defined = {name: body for name, body in self._definitions.items() if body is not None}
        ending: set[str] = set()
        while more := {name for name in defined.keys() - ending if _ends(defined[name], ending)}:
            ending |= more
        return [name for name in defined if name not in ending]


def _kinds(kind: str) -> set[str]:
    """Return the types that have values in common with this type."""
    return {"number", "integer"} if kind == "number" else {kind}


def _kinds_of(part: Part) -> set[str] | None:
    """Return the types that a part allows. None: any type."""
    if "enum" in part or "const" in part:
        values: list[Any] = part.get("enum") if "enum" in part else [part.get("const")]
        return {kind for value in values for kind in _kinds(_kind_of_value(value))}
    declared = part.get("type")
    if declared is None:
        return None
    return {kind for name in ([declared] if isinstance(declared, str) else declared) for kind in _kinds(name)}


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for kinds, name in (((int, float), "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kinds):
            return name
    return "null"


def _ends(schema: Schema, ending: set[str]) -> bool:
    """Return whether a rewritten schema has a finite value. `ending` are the definitions known to have one."""
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in ending
    if "anyOf" in schema:
        return any(_ends(option, ending) for option in schema["anyOf"])
    needed: list[Schema] = [schema["properties"][name] for name in schema.get("required", ())]
    if least := schema.get("minItems", 0):
        needed += schema.get("prefixItems", [])[:least]
        needed += [schema["items"]] if least > len(needed) else []
    return all(_ends(each, ending) for each in needed)
