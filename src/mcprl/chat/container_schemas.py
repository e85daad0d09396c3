"""Objects and arrays as a grammar holds them: all keywords that hold for one value, as one schema of xgrammar.

What was measured of xgrammar 0.2.8. Declared properties are written in their order, each at most once. Other names
beside declared ones are not held apart from these (a name may be written with an escape, or match a pattern), so an
object either has declared properties and no others, or names of any kind. Such names may come twice, which a count of
at least two does not notice. Items and names that no keyword describes are refused where a count is asked for, unless
they are admitted in so many words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mcprl.bounds import MAX_PROPERTIES, OverLimitError
from mcprl.chat.schema_parts import Document, Findings, Part
from mcprl.chat.string_patterns import ANY_TEXT, MAX_COUNT, is_too_large, num_chars, read_pattern, write_pattern
from mcprl.patterns import schema_search

__all__ = ["Containers", "Schema"]

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
