"""Schemas that make whoever uses them carelessly work without end, and values to check against them."""

from __future__ import annotations

from typing import Any

PATTERN = "^(a+)+$"
TEXT = "a" * 36 + "!"


def arguments(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def doubled(levels: int) -> dict[str, Any]:
    """Each level refers twice to the next."""
    twice = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(levels)}
    return {"type": "object", "$defs": {**twice, f"d{levels}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def nested(levels: int) -> dict[str, Any]:
    """Arguments for a schema that refers to itself under `next`."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"next": value}
    return value


TWICE_ITSELF = arguments(next={"allOf": [{"$ref": "#"}, {"$ref": "#"}]})
OTHER_DIALECT = "https://json-schema.org/draft/2020-12/schema"

ANSWERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pattern": (arguments(a={"type": "string", "pattern": PATTERN}), {"a": TEXT}),
    "pattern inside a schema that names its dialect": (
        arguments(a={"$schema": OTHER_DIALECT, "type": "string", "pattern": PATTERN}),
        {"a": TEXT},
    ),
    "patternProperties": ({"type": "object", "patternProperties": {PATTERN: False}}, {"a": 1, TEXT: 1}),
    "patternProperties and no others": (
        {"type": "object", "patternProperties": {PATTERN: {}}, "additionalProperties": False},
        {TEXT: 1},
    ),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": PATTERN}}, {TEXT: 1}),
    "enum and pattern": (arguments(a={"enum": [TEXT, "aa"], "pattern": PATTERN}), {"a": TEXT}),
    "large enum and pattern": (
        arguments(a={"enum": [f"v{i}" for i in range(10_000)], "pattern": PATTERN}),
        {"a": TEXT},
    ),
    "references that double with each level of the value": (TWICE_ITSELF, nested(40)),
    "many items to compare": (arguments(a={"uniqueItems": True}), {"a": [{"n": n} for n in range(9000)] + [{"n": 1}]}),
}
"""Schemas that are accepted, each with arguments that it refuses."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "22 doubled references": (doubled(22), "more than 10000 schemas in a single position"),
    "doubled references under a property": (
        {**doubled(22), "$ref": "#/$defs/d22", "properties": {"a": {"$ref": "#/$defs/d0"}}},
        "more than 10000 schemas in a single position",
    ),
    "enum of 50,000 values": (arguments(a={"enum": list(range(50_000))}), "an enum of more than 10000 values"),
    "a long schema": (arguments(a={"const": "x" * 600_000}), "longer than 524288 bytes"),
    "many patterns": (
        arguments(**{f"p{i}": {"pattern": f"^[^x]{{1,{i + 1}}}$"} for i in range(3000)}),
        "more than 1000000 steps",
    ),
}
"""Schemas that are refused, each with the limit that it exceeds."""


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = arguments(a=schema)
    return schema


REFUSED["a deep schema"] = (deep(80), "nested more than 100 levels deep")
