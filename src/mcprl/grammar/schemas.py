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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jsonschema.validators import Draft202012Validator

from mcprl.grammar.patterns import ANY_TEXT, MAX_COUNT, is_too_large, num_chars, read_pattern, write_pattern
from mcprl.grammar.schema_parts import Branches, Document, Findings, Part, Unheld, number_schema, string_schema
from mcprl.schemas import (
    MAX_PROPERTIES,
    MAX_SCHEMA_BYTES,
    GrammarWork,
    OverLimitError,
    find_problems,
    measure,
    schema_search,
)

__all__ = ["GrammarSchemas", "Unheld", "as_grammar_schema", "find_unheld", "rewrite"]


Schema = dict[str, Any]

_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$dynamicRef", "contains")
_OTHER_NAMES = ("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties")


class Containers:
    """Writes objects and arrays; `place` writes what stands inside them, one level deeper."""

    def __init__(
        self,
        document: Document,
        findings: Findings,
        place: Callable[[Sequence[Part], int], Schema | None],
        excludes: Sequence[str],
        *,
        escapes: bool,
    ) -> None:
        self._document = document
        self._findings = findings
        self._place = place
        self._excludes = excludes
        self._escapes = escapes

    def array_schema(self, parts: Sequence[Part], depth: int) -> Schema | None:
        least = max((int(part.get("minItems")) for part in parts if "minItems" in part), default=0)
        most = min((int(part.get("maxItems")) for part in parts if "maxItems" in part), default=None)
        num_prefix = max((len(part.get("prefixItems", ())) for part in parts), default=0)
        for part in parts:
            self._check_items(part, most)
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
            return self._findings.add_dead_end(parts, keywords, "no array has so many items")
        schema: Schema = {"type": "array", "items": False if rest is None else rest}
        schema |= {"prefixItems": prefix} if prefix else {}
        schema |= {"minItems": least} if least else {}
        return schema | ({"maxItems": most} if most is not None and rest is not None else {})

    def _check_items(self, part: Part, most: int | None) -> None:
        if part.get("uniqueItems") is True and (most is None or most > 1):
            self._findings.add(part, "uniqueItems", "a grammar cannot compare items")
        if "contains" in part and (part.get("minContains") != 0 or "maxContains" in part):
            self._findings.add(part, "contains", "a grammar cannot count the items that fit")
        if "unevaluatedItems" in part and not _reads_alone(part, "unevaluatedItems"):
            self._findings.add(part, "unevaluatedItems", "it depends on which other schemas hold")

    def object_schema(self, parts: Sequence[Part], depth: int) -> Schema | None:
        required = _required(parts)
        names = list(dict.fromkeys(name for part in parts for name in part.get("properties", {})))
        names = list(dict.fromkeys((*names, *required)))
        if len(names) > MAX_PROPERTIES:
            raise OverLimitError(f"has an object of more than {MAX_PROPERTIES} properties")
        for part in parts:
            if "unevaluatedProperties" in part and not _reads_alone(part, "unevaluatedProperties"):
                self._findings.add(part, "unevaluatedProperties", "it depends on which other schemas hold")
        declared = any("properties" in part for part in parts)
        described = any(keyword in part for part in parts for keyword in _OTHER_NAMES)
        if not names and (described or not declared):
            return self._map_schema(parts, depth)
        properties: dict[str, Schema] = {}
        for name in names:
            written = self._property(parts, name, depth)
            if written is not None:
                properties[name] = written
            elif name in required:
                keywords = ("required", "dependentRequired")
                return self._findings.add_dead_end(parts, keywords, f"no value fits the required property {name!r}")
        self._check_dependents(parts, required, properties)
        schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
        schema |= {"required": [name for name in properties if name in required]} if required else {}
        return self._counted(parts, schema, len(required), len(properties))

    def _property(self, parts: Sequence[Part], name: str, depth: int) -> Schema | None:
        text = json.dumps(name, ensure_ascii=False)
        if any(excluded in text for excluded in self._excludes):
            for part in parts:
                if name in part.get("properties", {}):
                    self._findings.add(part, "properties", f"the name {name!r} cannot be written in a call")
            return None
        for part in parts:
            if "propertyNames" in part and not self._document.is_valid(name, part.at("propertyNames"), unsure=False):
                return None
        return self._place([inner for part in parts for inner in self._values_at(part, name)], depth + 1)

    def _values_at(self, part: Part, name: str) -> list[Part]:
        """What one part says of the value under a name."""
        found = [part.at("properties", name)] if name in part.get("properties", {}) else []
        for pattern in part.get("patternProperties", {}):
            search = schema_search(pattern)
            if search is None:
                self._findings.add(part, "patternProperties", f"{pattern!r} cannot be searched in linear time")
                continue
            found += [part.at("patternProperties", pattern)] if search(name) else []
        return found or _others(part, "additionalProperties", "unevaluatedProperties")

    def _check_dependents(self, parts: Sequence[Part], required: Sequence[str], names: Mapping[str, Any]) -> None:
        why = "a grammar cannot make one property depend on another"
        for part in parts:
            dependents: dict[str, list[str]] = part.get("dependentRequired", {})
            if any(name in names and not set(needed) <= set(required) for name, needed in dependents.items()):
                self._findings.add(part, "dependentRequired", why)
            if any(name in names for name in part.get("dependentSchemas", {})):
                self._findings.add(part, "dependentSchemas", why)

    def _counted(self, parts: Sequence[Part], schema: Schema, num_required: int, num_names: int) -> Schema | None:
        least = max((int(part.get("minProperties")) for part in parts if "minProperties" in part), default=0)
        most = min((int(part.get("maxProperties")) for part in parts if "maxProperties" in part), default=num_names)
        if least > min(most, num_names) or most < num_required:
            keywords = ("minProperties", "maxProperties")
            return self._findings.add_dead_end(parts, keywords, "no object has so many properties")
        schema |= {"minProperties": least} if least > num_required else {}
        return schema | ({"maxProperties": most} if most < num_names else {})

    def _map_schema(self, parts: Sequence[Part], depth: int) -> Schema | None:
        """An object of any names, or of those that match one pattern."""
        for part in parts:
            for keyword in ("dependentRequired", "dependentSchemas"):
                if part.get(keyword):
                    self._findings.add(part, keyword, "a grammar cannot make one property depend on another")
            if int(part.get("minProperties", 0)) > 1:
                self._findings.add(part, "minProperties", "a grammar would count a name that comes twice")
        least = max((int(part.get("minProperties")) for part in parts if "minProperties" in part), default=0)
        most = min((int(part.get("maxProperties")) for part in parts if "maxProperties" in part), default=None)
        names = self._names_of_map(parts, depth)
        if isinstance(names, list):
            closed: dict[str, Any] = {"type": "object", "properties": {name: {} for name in names}}
            return self.object_schema((*parts, Part(parts[0].path, closed, made=True)), depth)
        matched = [part.at("patternProperties", key) for part in parts for key in part.get("patternProperties", {})]
        holders = [part for part in parts if not part.get("patternProperties")]
        others = [inner for part in holders for inner in _others(part, "additionalProperties", "unevaluatedProperties")]
        value = self._place([*matched[:1], *others], depth + 1)
        if value is None or names is None or most == 0:
            empty: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
            return self._counted(parts, empty, 0, 0)
        if most is not None and least > most:
            return self._findings.add_dead_end(parts, ("minProperties", "maxProperties"), "no object has so many")
        schema: Schema = {"type": "object", "additionalProperties": value}
        if names:
            schema = {"type": "object", "patternProperties": {names: value}, "additionalProperties": False}
        schema |= {"minProperties": least} if least else {}
        return schema | ({"maxProperties": most} if most is not None else {})

    def _names_of_map(self, parts: Sequence[Part], depth: int) -> list[str] | str | None:
        """The names that a map may have: these, those that match a pattern ("": any), or None: none."""
        patterns = [(part, pattern) for part in parts for pattern in part.get("patternProperties", {})]
        constrained = [part for part in parts if "propertyNames" in part]
        if len(patterns) > 1:
            self._findings.add(patterns[1][0], "patternProperties", "a name may match several patterns at once")
        if patterns and constrained:
            self._findings.add(constrained[0], "propertyNames", "a grammar cannot hold two patterns at once")
        if patterns:
            part, pattern = patterns[0]
            return self._name_pattern(part, pattern)
        if not constrained:
            return ""
        text = Part(constrained[0].path, {"type": "string"}, made=True)
        written = self._place((*(part.at("propertyNames") for part in constrained), text), depth + 1)
        if written is None:
            return None
        if "enum" in written:
            return cast("list[str]", written["enum"])
        if written.get("type") != "string":
            self._findings.add(constrained[0], "propertyNames", "a grammar holds a pattern or a list of names only")
        return written.get("pattern", "")

    def _name_pattern(self, part: Part, pattern: str) -> str | None:
        try:
            tree = read_pattern(pattern)
        except ValueError as error:
            self._findings.add(part, "patternProperties", f"a grammar cannot hold {error}")
            return ""
        if is_too_large(tree):
            self._findings.add(part, "patternProperties", f"a grammar counts {MAX_COUNT} characters at most")
            return ""
        self._findings.work.count_chars(num_chars(tree))
        return "" if tree == ANY_TEXT else write_pattern(tree, escapes=self._escapes)


def _required(parts: Sequence[Part]) -> list[str]:
    """The names that must be there, with those that depend on them."""
    required = dict.fromkeys(name for part in parts for name in part.get("required", ()))
    dependents: dict[str, list[str]] = {}
    for part in parts:
        for trigger, needed in part.get("dependentRequired", {}).items():
            dependents.setdefault(trigger, []).extend(needed)
    pending = list(required)
    for name in pending:  # grows while it is read
        pending += [each for each in dict.fromkeys(dependents.get(name, ())) if each not in required]
        required |= dict.fromkeys(dependents.get(name, ()))
    return list(required)


def _items_at(part: Part, index: int) -> list[Part]:
    """What one part says of the item at an index."""
    if index < len(part.get("prefixItems", ())):
        return [part.at("prefixItems", index)]
    return _others(part, "items", "unevaluatedItems")


def _others(part: Part, keyword: str, unevaluated: str) -> list[Part]:
    if keyword in part:
        return [part.at(keyword)]
    return [part.at(unevaluated)] if unevaluated in part and _reads_alone(part, unevaluated) else []


def _reads_alone(part: Part, keyword: str) -> bool:
    """Whether `unevaluated…` means the same as its plain counterpart: nothing beside it evaluates anything."""
    schema = cast("Mapping[str, Any]", part.schema)
    return schema[keyword] is True or not any(each in schema for each in _IN_PLACE)


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


def find_unheld(
    schema: Mapping[str, Any], *, excludes: Sequence[str] = (), escapes: bool = False
) -> tuple[Unheld, ...]:
    """Every keyword of a tool's schema that its grammar does not hold, in the order in which they are met.

    `excludes` and `escapes` as for `as_grammar_schema`.

    >>> find_unheld({"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}})
    (Unheld(path='/properties/tags', keyword='uniqueItems', why='a grammar cannot compare items'),)
    """
    return rewrite(schema, excludes=excludes, escapes=escapes, work=GrammarWork())[1]


def as_grammar_schema(
    schema: Mapping[str, Any], *, excludes: Sequence[str] = (), escapes: bool = False
) -> dict[str, Any]:
    """The schema for a grammar: it admits what the schema admits, or less, but for what `find_unheld` names.

    `excludes`: the texts that the grammar is told to exclude. Values that hold one are left out here, since xgrammar
    would admit the name of a property for which it then has no value. It does not look for them in strings with a
    pattern, but no `<` is written there. `escapes`: the call is JSON all through, so that such a string may hold
    characters as escapes.

    >>> schema = {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[a-f]+$", "maxLength": 9}}}
    >>> as_grammar_schema(schema)["properties"]
    {'id': {'type': 'string', 'pattern': '^[a-f]{1,9}$'}}
    """
    return rewrite(schema, excludes=excludes, escapes=escapes, work=GrammarWork())[0]


def rewrite(
    schema: Mapping[str, Any], *, excludes: Sequence[str], escapes: bool, work: GrammarWork
) -> tuple[dict[str, Any], tuple[Unheld, ...]]:
    """The schema for a grammar, and every keyword that it does not hold. Raises OverLimitError."""
    measure(schema, most_bytes=MAX_SCHEMA_BYTES)
    malformed = _find_malformed(schema)
    if malformed:
        return {"type": "object"}, malformed
    schemas = GrammarSchemas(schema, excludes=excludes, escapes=escapes, work=work)
    try:
        written = schemas.rewrite()
    except RecursionError as error:
        raise OverLimitError("is nested too deeply once its references are written out") from error
    if written is not None:
        return written, tuple(schemas.findings.unheld.values())
    nothing = Unheld("", next(iter(Part("", schema).keywords), ""), "it admits no arguments at all")
    unheld = tuple(schemas.findings.unheld.values()) or tuple(schemas.findings.dead_ends[:1]) or (nothing,)
    return {"type": "object"}, unheld


def _find_malformed(schema: Mapping[str, Any]) -> tuple[Unheld, ...]:
    """Where it is no JSON Schema of 2020-12 at all: nothing can be said of what it means."""
    found: dict[tuple[str, str], Unheld] = {}
    for error in find_problems(schema, Draft202012Validator):
        steps = list(error.absolute_path)
        names = [index for index, step in enumerate(steps) if isinstance(step, str)]
        place = names[-1] if names else 0
        path = "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps[:place])
        keyword = str(steps[place]) if names else ""
        found.setdefault((path, keyword), Unheld(path, keyword, f"no valid schema: {error.message}"))
    return tuple(found.values())
