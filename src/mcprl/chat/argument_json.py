r"""Arguments of a call as JSON, in the form that a grammar of their tool admits: see `constraints`.

Properties come in the order of the schema, numbers have no exponent, and `<` is written as `\u003c` where a marker
could begin with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

__all__ = ["write_json"]

Schema = Mapping[str, Any]

# No marker goes on with one of these, and programs that compare numbers stay readable.
_BEGINS_A_MARKER = re.compile(r'<(?![\s\d="\\])')
_IN_PLACE = ("anyOf", "oneOf", "allOf")


def write_json(value: object, schema: object, root: Schema) -> str:
    r"""A value as JSON. `schema` is what a tool's schema, `root`, says of it.

    >>> schema = {"properties": {"name": {"type": "string"}, "share": {"type": "number"}}}
    >>> print(write_json({"share": 1e-05, "name": "<b>"}, schema, schema))
    {"name": "\u003cb>", "share": 0.00001}
    """
    return _written(value, _Place.of(root, [schema]))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands: every part of a schema that speaks of it."""

    root: Schema
    parts: tuple[Schema, ...]

    @classmethod
    def of(cls, root: Schema, schemas: Sequence[object]) -> _Place:
        return cls(root, tuple(_parts_of(schemas, root)))

    def order(self, names: Sequence[str]) -> list[str]:
        """These names in the order of the schema, those that it does not have last."""
        known = dict.fromkeys(name for part in self.parts for name in part.get("properties", {}))
        return [name for name in known if name in names] + [name for name in names if name not in known]

    def property(self, name: str) -> _Place:
        found = [part.get("properties", {}).get(name, part.get("additionalProperties")) for part in self.parts]
        return _Place.of(self.root, found)

    def item(self, index: int) -> _Place:
        found: list[object] = []
        for part in self.parts:
            first: Sequence[object] = part.get("prefixItems", ())
            found.append(first[index] if index < len(first) else part.get("items"))
        return _Place.of(self.root, found)


def _parts_of(schemas: Sequence[object], root: Schema) -> Iterator[Schema]:
    """The schemas, with those that they refer to or choose from at the same place, each once."""
    todo, seen = list(schemas), set[int]()
    while todo:
        schema = todo.pop(0)
        if not isinstance(schema, Mapping) or id(cast("Schema", schema)) in seen:
            continue
        part = cast("Schema", schema)
        seen.add(id(part))
        yield part
        todo += [_target(part["$ref"], root)] if "$ref" in part else []
        todo += [branch for keyword in _IN_PLACE for branch in part.get(keyword, ())]


def _target(reference: str, root: Schema) -> object:
    if not reference.startswith("#"):
        return None
    found: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = cast("Schema", found).get(name) if isinstance(found, dict) else None
    return found


def _written(value: object, place: _Place) -> str:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        pairs = [f"{_text(name)}: {_written(fields[name], place.property(name))}" for name in place.order(list(fields))]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return "[" + ", ".join(_written(item, place.item(index)) for index, item in enumerate(items)) + "]"
    if isinstance(value, float) and "e" in repr(value):
        digits = format(Decimal(repr(value)), "f")
        return digits if "." in digits else f"{digits}.0"
    return _text(value)


def _text(value: object) -> str:
    return _BEGINS_A_MARKER.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))
