"""Arguments of tools as flat values: {"entities.name": "Ana"} stands for {"entities": [{"name": "Ana"}]}.

Exploration and plans use flat values. `shaped` converts them to what the schema requires. A list gets one item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mcprl.tools import Tool
from mcprl_synthesis.reading import number_of

__all__ = ["Leaf", "leaves", "of_schema", "required", "shaped", "type_of", "typed"]

_MAX_DEPTH: Final = 4


@dataclass(frozen=True, slots=True)
class Leaf:
    """An argument that has a plain value."""

    schema: Mapping[str, Any]
    required: bool


def leaves(tool: Tool) -> dict[str, Leaf]:
    """Return the arguments of a tool that have plain values, by their path."""
    return dict(_leaves("", tool.parameters, True, tool.parameters))


def _leaves(name: str, schema: Mapping[str, Any], needed: bool, root: Mapping[str, Any]) -> Iterator[tuple[str, Leaf]]:
    schema = _resolved(schema, root)
    if name.count(".") < _MAX_DEPTH and (items := _items(schema)) is not None:
        yield from _leaves(name, items, needed, root)
    elif name.count(".") < _MAX_DEPTH and "properties" in schema:
        for each, inner in schema["properties"].items():
            yield from _leaves(_path(name, each), inner, needed and each in schema.get("required", ()), root)
    elif name:
        yield name, Leaf(schema, needed)


def shaped(tool: Tool, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert flat arguments to what the schema of the tool requires."""
    return _shaped("", tool.parameters, flat, tool.parameters) or {}


def _shaped(name: str, schema: Mapping[str, Any], flat: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    if name in flat and isinstance(flat[name], list):  # a hint gives the whole list
        return flat[name]
    schema = _resolved(schema, root)
    if name.count(".") < _MAX_DEPTH and (items := _items(schema)) is not None:
        inner = _shaped(name, items, flat, root)
        return None if inner is None else [inner]
    if name.count(".") < _MAX_DEPTH and "properties" in schema:
        parts = {each: _shaped(_path(name, each), part, flat, root) for each, part in schema["properties"].items()}
        return {each: part for each, part in parts.items() if part is not None} or None
    return flat.get(name)


def _path(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _items(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    items = schema.get("items") if type_of(schema) == "array" else None
    return cast("Mapping[str, Any]", items) if isinstance(items, dict) else None


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a schema's reference, or choose the first of its variants that is not null."""
    variants = [each for each in cast("list[Any]", schema.get("anyOf", [])) if each.get("type") != "null"]
    if "type" not in schema and variants:
        return {**schema, **_resolved(variants[0], root)}
    name = str(schema.get("$ref", ""))
    return root.get("$defs", {}).get(name.removeprefix("#/$defs/"), schema) if name else schema


def required(tool: Tool) -> list[str]:
    return [name for name, leaf in leaves(tool).items() if leaf.required]


def type_of(schema: Mapping[str, Any]) -> str:
    """Return the first type of a schema; "" if it has none."""
    types = [kind for kind in _listed(schema.get("type")) if kind != "null"]
    return str(types[0]) if types else ""


def _listed(value: Any) -> list[Any]:
    return [] if value is None else cast("list[Any]", value) if isinstance(value, list) else [value]


def of_schema(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema names: enum, const, examples, default."""
    named = [*_listed(schema.get("enum")), *_listed(schema.get("examples"))]
    named += [schema[word] for word in ("const", "example", "default") if word in schema]
    if type_of(schema) == "boolean":
        named += [True, False]
    return [value for value in named if isinstance(value, str | int | float) and value != ""]


def typed(value: Any, schema: Mapping[str, Any]) -> Any:
    """Convert a value from a result to the type of an argument; None if that is impossible."""
    kind, number = type_of(schema), number_of(str(value))
    if kind == "string":
        return str(value)
    if kind == "integer":
        return int(number) if number is not None and number == number.to_integral_value() else None
    return float(number) if kind == "number" and number is not None else None
