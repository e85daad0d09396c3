"""The rewriting of a tool's schema into the few forms that xgrammar holds, and into nothing else.

For each place of a value, all schemas that hold there are gathered (`Document.gather`), their choices are multiplied
out, and what is left is written type by type. Only forms that were measured to hold are ever written: a keyword that
has no such form is named in the findings, so that nothing is held by chance and nothing is dropped in silence.

The forms: `$ref` into `$defs`, `anyOf`, `enum`, `{}`, and one `type` with `minimum`, `maximum`, `multipleOf`; `pattern`
or `format`; `items`, `prefixItems`, `minItems`, `maxItems`; `properties`, `required` and no other names; or, for other
names, `additionalProperties` or one of `patternProperties`; with `minProperties`, `maxProperties`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcprl.bounds import GrammarWork
from mcprl.chat.container_schemas import Containers, Schema
from mcprl.chat.scalar_schemas import number_schema, string_schema
from mcprl.chat.schema_branches import Branches
from mcprl.chat.schema_parts import Document, Findings, Part

__all__ = ["GrammarSchemas"]

_KEYWORDS_OF_TYPES = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    ),
}
_TYPES = ("null", "boolean", "integer", *_KEYWORDS_OF_TYPES)
_NEVER_HELD = {
    "not": "a grammar cannot forbid what it admits elsewhere",
    "dependencies": "a grammar cannot make one property depend on another",
    "$dynamicRef": "what it leads to depends on the way there",
    "$recursiveRef": "what it leads to depends on the way there",
}
_MAX_COMBINATIONS = 256
_MAX_DEFINITIONS = 5000
_MAX_INTEGER = 2**63 - 1


class GrammarSchemas:
    """The way of one schema into its grammar form. `excludes`: texts that no call may hold; `escapes`: see patterns."""

    def __init__(self, schema: Mapping[str, Any], *, excludes: Sequence[str], escapes: bool, work: GrammarWork) -> None:
        self.findings = Findings(work=work)
        self._document = Document(schema, self.findings)
        self._excludes = excludes
        self._escapes = escapes
        self._containers = Containers(self._document, self.findings, self._place, excludes, escapes=escapes)
        self._definitions: dict[str, Schema | None] = {}
        self._branches = Branches(self._document, self.findings, self._definitions)
        self._names: dict[object, str] = {}
        self._unfinished: dict[str, int] = {}
        self._awaited: set[str] = set()

    def rewrite(self) -> Schema | None:
        """The schema for the arguments of a call, which are an object. None where no arguments are admitted."""
        root = self._document.root
        # A tool that declares no arguments takes none; elsewhere an object without properties may hold any.
        arguments = Part(root.path, {"type": "object", "properties": {}}, made=True)
        written = self._place((root, arguments), 0)
        self._branches.check()
        if written is None or not self._definitions:
            return written
        return {**written, "$defs": {name: body for name, body in self._definitions.items() if body is not None}}

    def _place(self, parts: Sequence[Part], depth: int, width: int = 1) -> Schema | None:
        """The schema for a value for which all parts hold. None where there is no such value.

        `depth`: how many objects and arrays stand around it; `width`: how many choices were made for it already.
        """
        self._document.steps.spend()
        gathered, followed = self._document.gather(parts)
        if any(part.schema is False for part in gathered):
            return None
        if not followed or len(self._names) > _MAX_DEFINITIONS:
            return self._written(gathered, depth, width)
        key = tuple(part.key for part in gathered)
        name = self._names.setdefault(key, f"d{len(self._names)}")
        if self._unfinished.get(name) == depth:
            for part in gathered:
                for keyword in ("anyOf", "oneOf"):
                    if keyword in part:
                        self.findings.add(part, keyword, "a branch leads back to itself")
            return None
        if name not in self._definitions:
            self._unfinished[name] = depth
            self._definitions[name] = {}
            self._define(name, gathered, self._written(gathered, depth, width))
            del self._unfinished[name]
        elif name in self._unfinished:
            self._awaited.add(name)
        return None if self._definitions[name] is None else {"$ref": f"#/$defs/{name}"}

    def _define(self, name: str, parts: Sequence[Part], written: Schema | None) -> None:
        self._definitions[name] = written
        self._branches.note_definition(name, parts)
        if written is None and name in self._awaited:
            self._definitions[name] = {}  # it is referred to from within
            for part in parts:
                self.findings.add(part, part.keywords[0], "no value fits, and a value of it may hold another one")

    def _written(self, parts: Sequence[Part], depth: int, width: int) -> Schema | None:
        for part in parts:
            if "enum" in part or "const" in part:
                return self._listed(part, parts)
        for part in parts:
            for keyword, why in _NEVER_HELD.items():
                if keyword in part:
                    self.findings.add(part, keyword, why)
            if "if" in part and ("then" in part or "else" in part):
                self.findings.add(part, "if", "a grammar cannot look at a value twice")
        for part in parts:
            for keyword in ("anyOf", "oneOf"):
                if keyword in part:
                    return self._chosen(part, keyword, parts, depth, width)
        return self._typed(parts, depth)

    def _listed(self, holder: Part, parts: Sequence[Part]) -> Schema | None:
        """The values of an `enum` that all parts admit: these are asked one by one, so every keyword holds."""
        keyword = "enum" if "enum" in holder else "const"
        values: list[Any] = holder.get("enum") if keyword == "enum" else [holder.get("const")]
        valid = [v for v in values if all(self._document.is_valid(v, part, unsure=False) for part in parts)]
        writable = [value for value in valid if self._is_writable(value)]
        if not writable:
            if valid:
                self.findings.add(holder, keyword, "none of its values can be written in a call")
                return {}
            return self.findings.add_dead_end((holder,), (keyword,), "none of its values is admitted")
        listed = [value for value in writable if _short_range(value) is None]
        ranges = [short for value in writable if (short := _short_range(value)) is not None]
        return _any_of([*([{"enum": listed}] if listed else []), *ranges])

    def _is_writable(self, value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False)
        kept = json.loads(text, parse_int=lambda digits: n if abs(n := int(digits)) <= _MAX_INTEGER else float(n))
        return kept == value and not any(excluded in text for excluded in self._excludes)

    def _chosen(self, part: Part, keyword: str, parts: Sequence[Part], depth: int, width: int) -> Schema | None:
        """Each branch together with all that holds beside it."""
        branches = range(len(part.get(keyword)))
        rest = tuple(each.without(keyword) if each is part else each for each in parts)
        if width * len(branches) > _MAX_COMBINATIONS:
            self.findings.add(part, keyword, f"more than {_MAX_COMBINATIONS} combinations")
            return self._place(rest, depth, width)
        written = [self._place((*rest, part.at(keyword, branch)), depth, width * len(branches)) for branch in branches]
        if keyword == "oneOf":
            self._branches.note_one_of(part, written)
        return _any_of(written)

    def _typed(self, parts: Sequence[Part], depth: int) -> Schema | None:
        types = _types_of(parts)
        if types is None:
            return {}
        if not types:
            return self.findings.add_dead_end(parts, ("type",), "no type is left")
        return _any_of([self._of_type(kind, parts, depth) for kind in types])

    def _of_type(self, kind: str, parts: Sequence[Part], depth: int) -> Schema | None:
        match kind:
            case "object":
                return self._containers.object_schema(parts, depth)
            case "array":
                return self._containers.array_schema(parts, depth)
            case "string":
                return string_schema(parts, self.findings, escapes=self._escapes)
            case "integer" | "number":
                return number_schema(parts, self.findings, whole=kind == "integer")
            case _:
                return {"type": kind}


def _types_of(parts: Sequence[Part]) -> list[str] | None:
    """The types that all parts admit. Where none is named, those that the other keywords speak of; None: any."""
    declared = [part.get("type") for part in parts if "type" in part]
    if not declared:
        implied = [
            kind
            for kind, keywords in _KEYWORDS_OF_TYPES.items()
            if any(keyword in part for part in parts for keyword in keywords)
        ]
        return implied or None
    sets = [{kinds} if isinstance(kinds, str) else set[str](kinds) for kinds in declared]
    kinds = [
        kind for kind in _TYPES if all(kind in names or (kind == "integer" and "number" in names) for names in sets)
    ]
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]


def _short_range(value: Any) -> Schema | None:
    """A fraction as bounds: in an `enum`, xgrammar writes 0.1 as 0.10000000000000001."""
    if isinstance(value, float) and not value.is_integer() and round(value, 6) == value and abs(value) < 1e9:
        return {"type": "number", "minimum": value, "maximum": value}
    return None


def _any_of(schemas: Sequence[Schema | None]) -> Schema | None:
    """One of the schemas, each once. None where none is left."""
    flat: dict[str, Schema] = {}
    for schema in schemas:
        if schema is not None:
            inner: list[Schema] = schema.get("anyOf", [schema])
            flat |= {json.dumps(each): each for each in inner}
    options = list(flat.values())
    if not options or {} in options:
        return {} if options else None
    return options[0] if len(options) == 1 else {"anyOf": options}
