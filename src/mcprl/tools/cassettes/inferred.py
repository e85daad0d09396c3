"""Definitions of tools that no one wrote down, inferred from how they were called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from mcprl.tools.definitions import ToolDefinition

__all__ = ["infer_definition", "is_inferred", "merged_definitions"]

_INFERRED = "Inferred from recorded calls"
_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def infer_definition(name: str, calls: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]) -> ToolDefinition:
    """A definition that all the calls fit: each argument seen with its types; required is what every call gave.

    Of two names of which one is an alias of the other, the one seen less often is left out: it was a mistake.

    infer_definition("quote", [{"symbol": "A"}, {"symbol": "B", "limit": 2}], {}).parameters == {
        "type": "object", "required": ["symbol"],
        "properties": {"symbol": {"type": "string"}, "limit": {"type": "integer"}}}
    """
    uses = Counter(argument for call in calls for argument in call)
    mistaken = _mistaken_names(uses, aliases)
    types: dict[str, set[str]] = {}
    required: set[str] | None = None
    for call in calls:
        given = {_meant(argument, mistaken, aliases): value for argument, value in call.items()}
        for argument, value in given.items():
            types.setdefault(argument, set()).add(_JSON_TYPES[type(value)])
        required = set(given) if required is None else required & set(given)
    return _definition(name, types, required or set())


def is_inferred(definition: ToolDefinition) -> bool:
    """Whether a definition was inferred here, so that a written one may replace it and a new one widen it."""
    return definition.description.startswith(_INFERRED)


def merged_definitions(one: ToolDefinition, other: ToolDefinition) -> ToolDefinition:
    """The inferred definition that the calls of both fit."""
    types: dict[str, set[str]] = {}
    for definition in (one, other):
        for argument, schema in cast("dict[str, dict[str, Any]]", definition.parameters["properties"]).items():
            kinds: str | list[str] = schema["type"]
            types.setdefault(argument, set()).update([kinds] if isinstance(kinds, str) else kinds)
    required = set(one.parameters["required"]) & set(other.parameters["required"])
    return _definition(one.name, types, required)


def _mistaken_names(uses: Mapping[str, int], aliases: Mapping[str, str]) -> set[str]:
    mistaken: set[str] = set()
    for other, meant in aliases.items():
        if other in uses and meant in uses and not {other, meant} & mistaken:
            mirrored = aliases.get(meant) == other
            mistaken.add(meant if mirrored and uses[other] > uses[meant] else other)
    return mistaken


def _meant(argument: str, mistaken: Collection[str], aliases: Mapping[str, str]) -> str:
    return aliases[argument] if argument in mistaken else argument


def _definition(name: str, types: Mapping[str, set[str]], required: Collection[str]) -> ToolDefinition:
    properties = {argument: {"type": _schema_type(kinds)} for argument, kinds in types.items()}
    return ToolDefinition(
        name=name,
        description=f"{_INFERRED}: arguments {', '.join(types) or 'none'}.",
        parameters={
            "type": "object",
            "properties": properties,
            "required": [argument for argument in types if argument in required],
        },
    )


def _schema_type(kinds: set[str]) -> str | list[str]:
    # Every integer is a number.
    wide = sorted(kinds - {"integer"} if "number" in kinds else kinds)
    return wide[0] if len(wide) == 1 else wide
