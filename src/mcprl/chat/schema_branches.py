"""What can be said of a rewritten schema only once all of it is there: whether branches meet, whether values end.

`oneOf` asks for exactly one branch. A grammar admits any, which is the same where no value of a branch, as it was
written for the grammar, is valid by another. That is shown by types, by listed values, by a property that the other
branch requires and this one never writes, or by a property whose values differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcprl.chat.schema_parts import Document, Findings, Part

__all__ = ["Branches"]

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
