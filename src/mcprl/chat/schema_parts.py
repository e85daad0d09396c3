"""A tool's schema taken apart: which schemas hold for the same value, and where each of them stands.

A value is seldom described by one schema: `$ref` and `allOf` add others that hold beside it. `Document.gather` lists
them all, so that whoever rewrites a schema sees every keyword that holds at a place, together with where it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote, unquote

from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from mcprl.bounds import GrammarWork
from mcprl.schemas import Checking, bounded

__all__ = ["Document", "Findings", "Part", "Unheld"]

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
