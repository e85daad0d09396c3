"""Rewrites a tool's schema into the few forms that xgrammar enforces correctly.

For each subvalue, `Document.gather` collects all schemas that apply to it. Every combination of their `anyOf` and
`oneOf` branches becomes a branch, and the other keywords are written for each type. The result uses only forms that
tests have shown to be enforced. Every other keyword is reported, so no keyword is dropped silently.

The forms are `$ref` into `$defs`, `anyOf`, `enum`, `{}`, and one `type` with one of these sets of keywords:

    minimum, maximum
    multipleOf
    pattern or format
    items, prefixItems, minItems, maxItems
    properties and required, without additional properties
    additionalProperties alone
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema.validators import Draft202012Validator

from mcprl.bounds import MAX_PROPERTIES, MAX_SCHEMA_BYTES, GrammarWork, OverLimitError, measure
from mcprl.grammar.schema_parts import Branches, Document, Findings, Part, Unheld, number_schema, string_schema
from mcprl.schemas import find_problems

Schema = dict[str, Any]

_OTHER_NAMES = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")
_KEYWORDS_OF_TYPES = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"),
    "object": (
        *("properties", "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *_OTHER_NAMES,
    ),
}
_TYPES = ("null", "boolean", "integer", *_KEYWORDS_OF_TYPES)

_DEPENDENT = "a grammar cannot make one property depend on another"
_UNEVALUATED = "it depends on which other schemas match"
_DYNAMIC = "its target depends on the path that leads to it"
# Keywords that are never enforced. For each: the values that reject nothing, and why any other value is reported.
_NEVER_HELD: Mapping[str, tuple[tuple[object, ...], str]] = {
    "not": ((), "a grammar cannot express exceptions from what it allows"),
    "dependencies": ((), _DEPENDENT),
    "dependentRequired": (({},), _DEPENDENT),
    "dependentSchemas": (({},), _DEPENDENT),
    "patternProperties": (({},), "a grammar cannot match property names against a pattern"),
    "propertyNames": ((True, {}, {"type": "string"}), "a grammar cannot check property names"),
    "unevaluatedProperties": ((True, {}), _UNEVALUATED),
    "unevaluatedItems": ((True, {}), _UNEVALUATED),
    "contains": ((), "a grammar cannot count matching items"),
    "uniqueItems": ((False,), "a grammar cannot compare items"),
    "$dynamicRef": ((), _DYNAMIC),
    "$recursiveRef": ((), _DYNAMIC),
}
_MAX_COMBINATIONS = 256
_MAX_DEFINITIONS = 5000
_MAX_INTEGER = 2**63 - 1


class _Rewriter:
    """Rewrites one schema. `excludes` are strings that may not occur in a call. For `escapes` see `write_pattern`."""

    def __init__(self, schema: Mapping[str, Any], *, excludes: Sequence[str], escapes: bool, work: GrammarWork) -> None:
        self.findings = Findings(work=work)
        self._document = Document(schema, self.findings)
        self._excludes = excludes
        self._escapes = escapes
        self._definitions: dict[str, Schema | None] = {}
        self._branches = Branches(self._document, self.findings, self._definitions)
        self._names: dict[object, str] = {}
        self._unfinished: dict[str, int] = {}
        self._awaited: set[str] = set()

    def rewrite(self) -> Schema | None:
        """Return the schema for the arguments of a call, which are an object. None if no arguments are valid."""
        root = self._document.root
        # A tool that declares no arguments accepts none. Other objects without `properties` may have any property.
        arguments = Part(root.path, {"type": "object", "properties": {}}, made=True)
        written = self._place((root, arguments), 0)
        self._branches.check()
        if written is None or not self._definitions:
            return written
        return {**written, "$defs": {name: body for name, body in self._definitions.items() if body is not None}}

    def _place(self, parts: Sequence[Part], depth: int, width: int = 1) -> Schema | None:
        """Return the schema of the values that all parts allow. None if there is no such value.

        `depth` is the number of objects and arrays around the value, `width` the number of combinations tried so far.
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
            return self.findings.add_all(gathered, ("anyOf", "oneOf"), "a branch refers back to itself")
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
        self._branches.parts[name] = parts
        if written is None and name in self._awaited:
            self._definitions[name] = {}  # the definition refers to itself
            for part in parts:
                self.findings.add(
                    part,
                    part.keywords[0],
                    "no value matches, because every value must contain another value of the same schema",
                )

    def _written(self, parts: Sequence[Part], depth: int, width: int) -> Schema | None:
        for part in parts:
            if "enum" in part or "const" in part:
                return self._listed(part, parts)
        for part in parts:
            for keyword, (harmless, why) in _NEVER_HELD.items():
                if keyword in part and part.get(keyword) not in harmless:
                    self.findings.add(part, keyword, why)
            if "if" in part and ("then" in part or "else" in part):
                self.findings.add(part, "if", "a grammar cannot apply two schemas to the same value")
        for part in parts:
            for keyword in ("anyOf", "oneOf"):
                if keyword in part:
                    return self._chosen(part, keyword, parts, depth, width)
        types = _types_of(parts)
        if types is None:
            return {}
        if not types:
            return self.findings.add_dead_end(parts, ("type",), "no type satisfies all schemas that apply")
        return _any_of([self._of_type(kind, parts, depth) for kind in types])

    def _listed(self, holder: Part, parts: Sequence[Part]) -> Schema | None:
        """Return the values of an `enum` that all parts allow. Values are validated, so all keywords are enforced."""
        keyword = "enum" if "enum" in holder else "const"
        values: list[Any] = holder.get("enum") if keyword == "enum" else [holder.get("const")]
        valid = [v for v in values if all(self._document.is_valid(v, part, unsure=False) for part in parts)]
        writable = [value for value in valid if self._is_writable(value)]
        if not writable:
            if valid:
                self.findings.add(holder, keyword, "none of its values can be written in a call")
                return {}
            return self.findings.add_dead_end((holder,), (keyword,), "none of its values satisfies all keywords")
        listed = [value for value in writable if _short_range(value) is None]
        ranges = [short for value in writable if (short := _short_range(value)) is not None]
        return _any_of([*([{"enum": listed}] if listed else []), *ranges])

    def _is_writable(self, value: Any) -> bool:
        text = json.dumps(value, ensure_ascii=False)
        kept = json.loads(text, parse_int=lambda digits: n if abs(n := int(digits)) <= _MAX_INTEGER else float(n))
        return kept == value and not any(excluded in text for excluded in self._excludes)

    def _chosen(self, part: Part, keyword: str, parts: Sequence[Part], depth: int, width: int) -> Schema | None:
        """Combine each branch of `keyword` with all other schemas that apply to the value."""
        branches = range(len(part.get(keyword)))
        rest = tuple(each.without(keyword) if each is part else each for each in parts)
        if width * len(branches) > _MAX_COMBINATIONS:
            self.findings.add(part, keyword, f"it leads to more than {_MAX_COMBINATIONS} combinations of branches")
            return self._place(rest, depth, width)
        written = [self._place((*rest, part.at(keyword, branch)), depth, width * len(branches)) for branch in branches]
        if keyword == "oneOf":
            self._branches.one_ofs.append((part, written))
        return _any_of(written)

    def _of_type(self, kind: str, parts: Sequence[Part], depth: int) -> Schema | None:
        match kind:
            case "object":
                return self._object(parts, depth)
            case "array":
                return self._array(parts, depth)
            case "string":
                return string_schema(parts, self.findings, escapes=self._escapes)
            case "integer" | "number":
                return number_schema(parts, self.findings, whole=kind == "integer")
            case _:
                return {"type": kind}

    def _array(self, parts: Sequence[Part], depth: int) -> Schema | None:
        least = max((int(part.get("minItems")) for part in parts if "minItems" in part), default=0)
        most = min((int(part.get("maxItems")) for part in parts if "maxItems" in part), default=None)
        num_prefix = max((len(part.get("prefixItems", ())) for part in parts), default=0)
        prefix: list[Schema] = []
        for index in range(num_prefix if most is None else min(num_prefix, most)):
            item = self._place([inner for part in parts for inner in _items_at(part, index)], depth + 1)
            if item is None:
                most = index
                break
            prefix.append(item)
        rest_parts = [inner for part in parts for inner in _items_at(part, num_prefix)]
        rest: Schema | None = None
        if (most is None or most > len(prefix)) and (rest_parts or not prefix or least > len(prefix)):
            rest = self._place(rest_parts, depth + 1)
        if rest is None:
            most = len(prefix)
        if most is not None and least > most:
            keywords = ("minItems", "maxItems", "items", "prefixItems")
            return self.findings.add_dead_end(parts, keywords, "no array has this number of items")
        schema: Schema = {"type": "array", "items": False if rest is None else rest}
        schema |= {"prefixItems": prefix} if prefix else {}
        schema |= {"minItems": least} if least else {}
        return schema | ({"maxItems": most} if most is not None and rest is not None else {})

    def _object(self, parts: Sequence[Part], depth: int) -> Schema | None:
        required = list(dict.fromkeys(name for part in parts for name in part.get("required", ())))
        names = dict.fromkeys((*(name for part in parts for name in part.get("properties", {})), *required))
        if len(names) > MAX_PROPERTIES:
            raise OverLimitError(f"has an object with more than {MAX_PROPERTIES} properties")
        declared = any("properties" in part for part in parts)
        described = any(keyword in part for part in parts for keyword in _OTHER_NAMES)
        if not names and (described or not declared):
            return self._map(parts, depth)
        properties: dict[str, Schema] = {}
        for name in names:
            written = self._property(parts, name, depth)
            if written is not None:
                properties[name] = written
            elif name in required:
                why = f"no value is valid for the required property {name!r}"
                return self.findings.add_dead_end(parts, ("required",), why)
        self._check_counts(parts, len(required), len(properties))
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return schema | ({"required": [name for name in properties if name in required]} if required else {})

    def _property(self, parts: Sequence[Part], name: str, depth: int) -> Schema | None:
        text = json.dumps(name, ensure_ascii=False)
        if any(excluded in text for excluded in self._excludes):
            for part in parts:
                if name in part.get("properties", {}):
                    self.findings.add(part, "properties", f"the name {name!r} cannot be written in a call")
            return None
        found = [
            part.at("properties", name) if name in part.get("properties", {}) else part.at("additionalProperties")
            for part in parts
            if name in part.get("properties", {}) or _describes_others(part)
        ]
        return self._place(found, depth + 1)

    def _map(self, parts: Sequence[Part], depth: int) -> Schema:
        """Return the schema of an object whose properties may have any names."""
        self._check_counts(parts, 0, None)
        value = self._place([part.at("additionalProperties") for part in parts if _describes_others(part)], depth + 1)
        if value is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", "additionalProperties": value}

    def _check_counts(self, parts: Sequence[Part], fewest: int, most: int | None) -> None:
        """Report `minProperties` or `maxProperties` if an object of `fewest` to `most` properties can violate it."""
        for part in parts:
            if part.get("minProperties", 0) > fewest:
                self.findings.add(part, "minProperties", "a grammar cannot count properties")
            if "maxProperties" in part and (most is None or part.get("maxProperties") < most):
                self.findings.add(part, "maxProperties", "a grammar cannot count properties")


def _items_at(part: Part, index: int) -> list[Part]:
    if index < len(part.get("prefixItems", ())):
        return [part.at("prefixItems", index)]
    return [part.at("items")] if "items" in part else []


def _describes_others(part: Part) -> bool:
    """Return whether `additionalProperties` applies to all names that are not in `properties`."""
    return "additionalProperties" in part and not part.get("patternProperties")


def _types_of(parts: Sequence[Part]) -> list[str] | None:
    """Return the types that all parts allow. None: any type.

    If no part has `type`, the types follow from the other keywords. For example, `minLength` implies a string.
    """
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
    """Write a fraction as bounds, because xgrammar writes 0.1 in an `enum` as 0.10000000000000001."""
    if isinstance(value, float) and not value.is_integer() and round(value, 6) == value and abs(value) < 1e9:
        return {"type": "number", "minimum": value, "maximum": value}
    return None


def _any_of(schemas: Sequence[Schema | None]) -> Schema | None:
    """Return the union of the schemas, without duplicates. None if there are none."""
    flat: dict[str, Schema] = {}
    for schema in schemas:
        if schema is not None:
            inner: list[Schema] = schema.get("anyOf", [schema])
            flat |= {json.dumps(each): each for each in inner}
    options = list(flat.values())
    if not options or {} in options:
        return {} if options else None
    return options[0] if len(options) == 1 else {"anyOf": options}


def rewrite(
    schema: Mapping[str, Any], *, excludes: Sequence[str] = (), escapes: bool = False, work: GrammarWork | None = None
) -> tuple[dict[str, Any], tuple[Unheld, ...]]:
    """Rewrite a schema for a grammar. Also returns every keyword that is not enforced. Raises OverLimitError.

    Apart from the reported keywords, the result allows nothing that the schema forbids. It may allow less.

    `excludes` are the strings that the grammar excludes. Values that contain one are left out here; otherwise xgrammar
    would allow the name of a property and then no value for it. xgrammar excludes nothing from strings with a pattern,
    but these strings contain no `<`. With `escapes`, the whole call is JSON, so such a string may have escaped
    characters.

    >>> rewrite({"properties": {"id": {"type": "string", "pattern": "^[a-f]+$", "maxLength": 9}}})[0]["properties"]
    {'id': {'type': 'string', 'pattern': '^[a-f]{1,9}$'}}
    >>> rewrite({"properties": {"tags": {"type": "array", "uniqueItems": True}}})[1]
    (Unheld(path='/properties/tags', keyword='uniqueItems', why='a grammar cannot compare items'),)
    """
    measure(schema, most_bytes=MAX_SCHEMA_BYTES)
    malformed = _find_malformed(schema)
    if malformed:
        return {"type": "object"}, malformed
    rewriter = _Rewriter(schema, excludes=excludes, escapes=escapes, work=work or GrammarWork())
    try:
        written = rewriter.rewrite()
    except RecursionError as error:
        raise OverLimitError("is nested too deeply after its references are expanded") from error
    unheld = tuple(rewriter.findings.unheld.values())
    if written is not None:
        return written, unheld
    nothing = Unheld("", next(iter(Part("", schema).keywords), ""), "no arguments satisfy it")
    return {"type": "object"}, unheld or tuple(rewriter.findings.dead_ends[:1]) or (nothing,)


def _find_malformed(schema: Mapping[str, Any]) -> tuple[Unheld, ...]:
    """Return the places at which `schema` is not a valid JSON Schema (2020-12), so its meaning is unknown."""
    found: dict[tuple[str, str], Unheld] = {}
    for error in find_problems(schema, Draft202012Validator):
        steps = list(error.absolute_path)
        names = [index for index, step in enumerate(steps) if isinstance(step, str)]
        place = names[-1] if names else 0
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps[:place])
        keyword = str(steps[place]) if names else ""
        found.setdefault((path, keyword), Unheld(path, keyword, f"not a valid schema: {error.message}"))
    return tuple(found.values())
