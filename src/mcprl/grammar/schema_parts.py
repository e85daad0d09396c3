"""A tool's schema taken apart: which schemas hold for the same value, and where each of them stands.

A value is seldom described by one schema: `$ref` and `allOf` add others that hold beside it. `Document.gather` lists
them all, so that whoever rewrites a schema sees every keyword that holds at a place, together with where it came from.
"""

from __future__ import annotations

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
from mcprl.schemas import Checking, GrammarWork, bounded

__all__ = ["Branches", "Document", "Findings", "Part", "Unheld", "number_schema", "string_schema"]


# All other keywords are annotations: nothing is refused because of them.
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
    """A keyword of a schema whose meaning a grammar does not hold.

    Unheld(path="/properties/tags", keyword="uniqueItems", why="a grammar cannot compare items")
    """

    path: str
    keyword: str
    why: str


@dataclass(frozen=True, slots=True)
class Part:
    """A schema where it stands, without the keywords that were dealt with already.

    Part(path="/properties/tags", schema={"type": "array", "uniqueItems": True})

    `made`: it is not written there, but follows from what is.
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
        """The schema that stands further inward."""
        inner: Any = self.schema
        for step in steps:
            inner = inner[step]
        return Part(self.path + "".join("/" + _escaped(str(step)) for step in steps), inner)

    def without(self, keyword: str) -> Part:
        return replace(self, done=self.done | {keyword})

    @property
    def key(self) -> tuple[str, frozenset[str], bool]:
        """What tells it from all other parts of its document."""
        return self.path, self.done, self.made

    @property
    def keywords(self) -> tuple[str, ...]:
        """Those by which something may be refused."""
        return (
            () if isinstance(self.schema, bool) else tuple(key for key in self.schema if key in _ASSERTIONS - self.done)
        )


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


@dataclass
class Findings:
    """What was found on the way through a schema, each keyword of a place once.

    `unheld`: the grammar admits what the schema refuses, or can write nothing at all of what the schema admits.
    `dead_ends`: the schema itself refuses every value there.
    `work`: what may still be done.
    """

    unheld: dict[tuple[str, str], Unheld] = field(default_factory=dict[tuple[str, str], Unheld])
    dead_ends: list[Unheld] = field(default_factory=list[Unheld])
    work: GrammarWork = field(default_factory=GrammarWork)

    def add(self, part: Part, keyword: str, why: str) -> None:
        self.unheld.setdefault((part.path, keyword), Unheld(part.path, keyword, why))

    def add_dead_end(self, parts: Collection[Part], keywords: Collection[str], why: str) -> None:
        """A place that no value fits, named by the first of the keywords that stands there."""
        found = ((part, keyword) for part in parts for keyword in keywords if keyword in part and not part.made)
        for part, keyword in found:
            self.dead_ends.append(Unheld(part.path, keyword, why))
            return


class Document:
    """One tool's schema: its references, and whether values are valid by any part of it."""

    def __init__(self, root: Mapping[str, Any], findings: Findings) -> None:
        self.root = Part("", {key: value for key, value in root.items() if key != "$id"})
        self._findings = findings
        self._moved = _holds_address(self.root.schema)
        empty: Registry[Any] = Registry()
        self._registry = empty.with_resource("urn:tool", DRAFT202012.create_resource(self.root.schema))
        self.steps = findings.work.steps
        self._checking = Checking(self.steps)
        self._validators: dict[object, Validator] = {}

    def is_valid(self, value: Any, part: Part, *, unsure: bool) -> bool:
        """Whether a value is valid by a part as it was written; `unsure` where that cannot be told.

        That is: where its references cannot be followed, or a pattern cannot be searched in linear time.
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
        """All parts that hold for the value for which these hold, and whether a reference was followed."""
        gathered: list[Part] = []
        seen: set[object] = set()
        followed = False
        nobody: frozenset[str] = frozenset()
        pending = [(part, nobody) for part in parts]
        while pending:
            self.steps.spend()
            part, outer = pending.pop(0)
            if part.path in outer:
                self._findings.add(part, "$ref" if "$ref" in part else "allOf", "it leads back to itself")
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
            self._findings.add(part, "$ref", "only references into the schema itself (#/…) can be followed")
            return None
        if self._moved:
            self._findings.add(part, "$ref", "an $id inside the schema changes what references mean")
            return None
        steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]
        target: Any = self.root.schema
        for step in steps:
            target = _stepped(target, step)
        if not isinstance(target, (bool, Mapping)):
            self._findings.add(part, "$ref", "it leads to no schema")
            return None
        path = "".join("/" + _escaped(step) for step in steps)
        return Part(path, cast("Mapping[str, Any] | bool", target))


def _stepped(target: Any, step: str) -> Any:
    if isinstance(target, Mapping):
        return cast("Mapping[str, Any]", target).get(step)
    if isinstance(target, list) and step.isdecimal() and int(step) < len(cast("list[Any]", target)):
        return cast("list[Any]", target)[int(step)]
    return None


def _holds_address(schema: Any) -> bool:
    """Whether some schema in it has an address of its own, against which its references are read."""
    if isinstance(schema, Mapping):
        members = cast("Mapping[str, Any]", schema)
        return isinstance(members.get("$id"), str) or any(_holds_address(member) for member in members.values())
    return isinstance(schema, list) and any(_holds_address(item) for item in cast("list[Any]", schema))


_MAX_INTEGER = 2**63 - 1
_MAX_NUMBER = 2**53
_MAX_FINE_NUMBER = 10**9  # beyond it, a float no longer tells numbers with six decimals apart
_FINEST = Decimal("0.000001")
_MAX_DIVISOR = 1024
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

# Formats whose grammar can neither write a marker nor break the JSON. `format` refuses nothing, so others are dropped.
_SAFE_FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uuid")
)


def number_schema(parts: Sequence[Part], findings: Findings, *, whole: bool) -> dict[str, Any] | None:
    """A number (`whole`: an integer) between its bounds and a multiple of its divisors."""
    divisors = {Decimal(str(part.get("multipleOf"))) for part in parts if "multipleOf" in part}
    whole_divisors = {int(divisor) for divisor in divisors if divisor == int(divisor)}
    for part in parts:
        if "multipleOf" in part and int(part.get("multipleOf")) != part.get("multipleOf"):
            findings.add(part, "multipleOf", "a grammar cannot divide by a fraction")
    whole = whole or bool(whole_divisors)
    bounds = _integer_bounds(parts, findings) if whole else _number_bounds(parts, findings)
    if bounds is None:
        return None
    divisor = math.lcm(*whole_divisors)
    if divisor > 1 and bounds:
        return _multiples(parts, findings, divisor, bounds)
    if divisor > _MAX_DIVISOR:
        _name(parts, findings, "multipleOf", f"a grammar cannot divide by more than {_MAX_DIVISOR}")
    if 1 < divisor <= _MAX_DIVISOR:
        return {"type": "integer", "multipleOf": divisor, **bounds}
    # Without bounds a number may have an exponent that no float holds, or digits without end.
    most = _MAX_INTEGER if whole else _MAX_NUMBER
    return {"type": "integer" if whole else "number", "minimum": -most, "maximum": most, **bounds}


def _name(parts: Sequence[Part], findings: Findings, keyword: str, why: str) -> None:
    for part in parts:
        if keyword in part:
            findings.add(part, keyword, why)


def _multiples(
    parts: Sequence[Part], findings: Findings, divisor: int, bounds: dict[str, Any]
) -> dict[str, Any] | None:
    """Between bounds, multiples are listed one by one."""
    if len(bounds) == 2:
        low, high = -(-bounds["minimum"] // divisor), bounds["maximum"] // divisor
        if low > high:
            return findings.add_dead_end(parts, ("multipleOf",), "no multiple lies between its bounds")
        if high - low < _MAX_DIVISOR:
            return {"enum": [divisor * factor for factor in range(low, high + 1)]}
    _name(parts, findings, "multipleOf", "a grammar cannot divide and hold these bounds at once")
    return {"type": "integer", **bounds}


def _bounds_of(parts: Sequence[Part], keyword: str) -> list[Decimal]:
    return [Decimal(str(part.get(keyword))) for part in parts if keyword in part]


def _integer_bounds(parts: Sequence[Part], findings: Findings) -> dict[str, Any] | None:
    lows = [math.ceil(bound) for bound in _bounds_of(parts, "minimum")]
    lows += [math.floor(bound) + 1 for bound in _bounds_of(parts, "exclusiveMinimum")]
    highs = [math.floor(bound) for bound in _bounds_of(parts, "maximum")]
    highs += [math.ceil(bound) - 1 for bound in _bounds_of(parts, "exclusiveMaximum")]
    return _held(parts, findings, lows, highs, _MAX_INTEGER)


def _number_bounds(parts: Sequence[Part], findings: Findings) -> dict[str, Any] | None:
    lows = [_inward(bound, ROUND_CEILING, False) for bound in _bounds_of(parts, "minimum")]
    lows += [_inward(bound, ROUND_CEILING, True) for bound in _bounds_of(parts, "exclusiveMinimum")]
    highs = [_inward(bound, ROUND_FLOOR, False) for bound in _bounds_of(parts, "maximum")]
    highs += [_inward(bound, ROUND_FLOOR, True) for bound in _bounds_of(parts, "exclusiveMaximum")]
    return _held(parts, findings, lows, highs, _MAX_NUMBER)


def _inward(bound: Decimal, rounding: str, exclusive: bool) -> int | float:
    """The bound, or the next number inward that a grammar can hold as one that is itself allowed."""
    step = _FINEST if abs(bound) < _MAX_FINE_NUMBER else Decimal(1)
    steps = (bound / step).to_integral_value(rounding)
    if exclusive and steps * step == bound:
        steps += 1 if rounding == ROUND_CEILING else -1
    inward = steps * step
    return int(inward) if inward == int(inward) else float(inward)


def _held(
    parts: Sequence[Part], findings: Findings, lows: Sequence[float], highs: Sequence[float], most: int
) -> dict[str, Any] | None:
    """The tightest bounds, moved inward to what the grammar can count to."""
    bounds: dict[str, Any] = {}
    if lows:
        bounds["minimum"] = max(*lows, -most)
    if highs:
        bounds["maximum"] = min(*highs, most)
    low, high = bounds.get("minimum", -most), bounds.get("maximum", most)
    if low > most or high < -most:
        for keyword in _BOUNDS[:2] if low > most else _BOUNDS[2:]:
            _name(parts, findings, keyword, f"a grammar cannot count to it (at most {most})")
        return {}
    if low > high:
        asked = [_bounds_of(parts, keyword) for keyword in _BOUNDS]
        if max(asked[0] + asked[1]) < min(asked[2] + asked[3]) and most == _MAX_NUMBER:
            for keyword in _BOUNDS:
                _name(parts, findings, keyword, "a grammar holds six decimals at most, and none lies between")
            return {}
        return findings.add_dead_end(parts, _BOUNDS, "no number lies between its bounds")
    return bounds


def string_schema(parts: Sequence[Part], findings: Findings, *, escapes: bool) -> dict[str, Any] | None:
    """A string that matches its patterns and is as long as it must be."""
    least = max((int(part.get("minLength")) for part in parts if "minLength" in part), default=0)
    most = min((int(part.get("maxLength")) for part in parts if "maxLength" in part), default=None)
    if most is not None and least > most:
        return findings.add_dead_end(parts, ("minLength", "maxLength"), "no string has such a length")
    tree = _tree(parts, findings)
    counted = with_length(tree, least, most)
    if counted is None or is_too_large(counted):
        why = f"a grammar counts {MAX_COUNT} characters at most" if counted else "a grammar cannot count this pattern"
        for keyword in ("minLength", "maxLength"):
            _name(parts, findings, keyword, why)
        counted = tree
    if counted == ANY_TEXT:
        formats = {str(part.get("format")) for part in parts if "format" in part} & _SAFE_FORMATS
        return {"type": "string"} | ({"format": formats.pop()} if len(formats) == 1 else {})
    findings.work.count_chars(num_chars(counted))
    written = write_pattern(counted, escapes=escapes)
    if written is None:
        if write_pattern(counted, escapes=True) is not None:
            _name(parts, findings, "pattern", "every string that matches holds a character that cannot be written")
            return {"type": "string"}
        return findings.add_dead_end(parts, ("pattern",), "no string matches the pattern and has the length")
    return {"type": "string", "pattern": written}


def _tree(parts: Sequence[Part], findings: Findings) -> Pattern:
    """The one pattern that the parts ask for. A second one is named: a grammar cannot hold two at once."""
    patterns: dict[str, Part] = {}
    for part in parts:
        if "pattern" in part:
            patterns.setdefault(part.get("pattern"), part)
    tree: Pattern = ANY_TEXT
    for pattern, part in patterns.items():
        try:
            another = read_pattern(pattern)
        except ValueError as error:
            findings.add(part, "pattern", f"a grammar cannot hold {error}")
            continue
        if is_too_large(another):
            findings.add(part, "pattern", f"a grammar counts {MAX_COUNT} characters at most")
            continue
        if tree != ANY_TEXT and another != ANY_TEXT:
            findings.add(part, "pattern", "a grammar cannot hold two patterns at once")
        tree = another if tree == ANY_TEXT else tree
    return tree


Schema = dict[str, Any]

_MAX_DEPTH = 6


@dataclass(frozen=True, slots=True)
class _OneOf:
    part: Part
    written: tuple[Schema | None, ...]


class Branches:
    """Collects branches and definitions while a schema is rewritten, and checks them afterwards."""

    def __init__(self, document: Document, findings: Findings, definitions: Mapping[str, Schema | None]) -> None:
        self._document = document
        self._findings = findings
        self._definitions = definitions
        self._one_ofs: list[_OneOf] = []
        self._parts: dict[str, Sequence[Part]] = {}

    def note_one_of(self, part: Part, written: Sequence[Schema | None]) -> None:
        self._one_ofs.append(_OneOf(part, tuple(written)))

    def note_definition(self, name: str, parts: Sequence[Part]) -> None:
        self._parts[name] = parts

    def check(self) -> None:
        for one_of in self._one_ofs:
            self._check_one_of(one_of)
        for name in self._endless():
            for part in self._parts[name]:
                for keyword in ("required", "minItems", "minProperties", "anyOf", "oneOf"):
                    if keyword in part:
                        self._findings.add(part, keyword, "every value holds another of its kind, without end")

    def _check_one_of(self, one_of: _OneOf) -> None:
        for index, written in enumerate(one_of.written):
            for other in range(len(one_of.written)):
                branch = one_of.part.at("oneOf", other)
                if other != index and written is not None and not self._differs(written, branch, 0):
                    why = f"a value may fit branches {min(index, other)} and {max(index, other)} at once"
                    self._findings.add(one_of.part, "oneOf", why)
                    return

    def _differs(self, written: Schema, branch: Part, depth: int) -> bool:
        """Whether no value of the written schema is valid by the branch."""
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
        """Definitions of which no value can ever be finished."""
        ending: set[str] = set()
        while True:
            more = {
                name
                for name, body in self._definitions.items()
                if name not in ending and body is not None and _ends(body, ending)
            }
            if not more:
                return [name for name, body in self._definitions.items() if name not in ending and body is not None]
            ending |= more


def _kinds(kind: str) -> set[str]:
    """Types that share values, under one name."""
    return {"number", "integer"} if kind == "number" else {kind}


def _kinds_of(part: Part) -> set[str] | None:
    """The types that a part admits. None: any."""
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
    """Whether some value of a written schema is finite, given the definitions known to have one."""
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in ending
    if "anyOf" in schema:
        return any(_ends(option, ending) for option in schema["anyOf"])
    if schema.get("type") == "object":
        needed: list[Schema] = [schema["properties"][name] for name in schema.get("required", ())]
        if schema.get("minProperties", 0) > len(needed):
            inner = [*schema.get("properties", {}).values(), *schema.get("patternProperties", {}).values()]
            inner += [schema["additionalProperties"]] if isinstance(schema["additionalProperties"], dict) else []
            # As many as must be there can end. Which of them are written is the sampler's choice.
            return sum(_ends(each, ending) for each in inner) >= (schema["minProperties"] if len(inner) > 1 else 1)
        return all(_ends(each, ending) for each in needed)
    if schema.get("type") == "array" and schema.get("minItems"):
        prefix: list[Schema] = schema.get("prefixItems", [])[: schema["minItems"]]
        rest = [schema["items"]] if schema["minItems"] > len(prefix) else []
        return all(_ends(each, ending) for each in [*prefix, *rest])
    return True
