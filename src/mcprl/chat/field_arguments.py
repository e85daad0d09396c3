"""Arguments that a family writes one by one, name and value, as formats of a structural tag.

The parsers of these families take white space off both ends of a value. A value whose schema says `"type": "string"`
they keep as the text it is; any other they read as JSON. So the former is raw text here and the latter JSON, also where
it may be a string: the text 12 would be read as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcprl.chat.call_syntax import FieldSyntax
from mcprl.chat.schema_limits import Unheld
from mcprl.chat.string_patterns import Chars, Either, Joined, Pattern, Repeated, read_pattern

__all__ = ["SPACE", "FieldArguments"]

Format = dict[str, Any]
Schema = Mapping[str, Any]

SPACE = "\\s\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What Python takes for white space, for a class of a regular expression."""

_STRINGS = ("string", ["string"])
_STRIPPED = "white space at the ends of this argument is not kept"


@dataclass(frozen=True, slots=True)
class FieldArguments:
    """Writes the arguments of tools. `pieces`, `json` and `text` make formats of fixed text, JSON and raw text."""

    fields: FieldSyntax
    pieces: Callable[[str], list[Format]]
    json: Callable[[Schema], Format]
    text: Format

    def write(self, schema: Schema, held: Schema) -> tuple[list[Format], list[Unheld]]:
        """The arguments of a tool, and what of its schema is not held. `held` is the schema as a grammar holds it."""
        definitions: Mapping[str, Schema] = held.get("$defs", {})
        unheld: list[Unheld] = []
        whole = _target(held, definitions)
        options = [
            self._object(schema, _target(option, definitions), definitions, unheld)
            for option in whole.get("anyOf", [whole])
        ]
        if len(options) == 1:
            return options[0], unheld
        return [{"type": "or", "elements": [{"type": "sequence", "elements": each} for each in options]}], unheld

    def _object(self, schema: Schema, held: Schema, definitions: Schema, unheld: list[Unheld]) -> list[Format]:
        properties: Mapping[str, Schema] = held.get("properties", {})
        required: Sequence[str] = held.get("required", ())
        if not properties and (held.get("additionalProperties", False) is not False or "patternProperties" in held):
            unheld.append(Unheld("", "additionalProperties", "arguments written one by one need names that are known"))
        if held.get("minProperties", 0) > len(required) or held.get("maxProperties", len(properties)) < len(properties):
            unheld.append(Unheld("", "minProperties", "arguments written one by one are not counted"))
        written: list[Format] = []
        for name, value in properties.items():
            before = self.pieces(self.fields.before + name + self.fields.between)
            inside = self._value(name, schema.get("properties", {}).get(name, {}), value, definitions, unheld)
            field = [*before, inside, *self.pieces(self.fields.after)]
            optional = {"type": "optional", "content": {"type": "sequence", "elements": field}}
            written += field if name in required else [optional]
        return written

    def _value(self, name: str, schema: Any, held: Schema, definitions: Schema, unheld: list[Unheld]) -> Format:
        if not isinstance(schema, Mapping) or cast("Schema", schema).get("type") not in _STRINGS:
            return self.json({**held, "$defs": definitions} if definitions else held)
        format_, keyword = self._raw(cast("Schema", schema), held)
        if keyword is not None:
            unheld.append(Unheld(f"/properties/{name}", keyword, _STRIPPED))
        return format_

    def _raw(self, schema: Schema, held: Schema) -> tuple[Format, str | None]:
        """A string as it stands, and the keyword that is not held there, if any."""
        if "enum" in held:
            kept = [value for value in held["enum"] if value == value.strip()]
            texts: list[Format] = [{"type": "const_string", "value": value} for value in kept]
            return ({"type": "or", "elements": texts}, None) if texts else (self.text, "enum")
        if held.keys() <= {"type", "format"}:
            return self.text, None
        if "pattern" not in held:
            return self.text, next(iter(schema))
        if _is_only_counted(schema):
            return _counted(schema), None
        unstable = _writes_space(read_pattern(held["pattern"]))
        return {"type": "regex", "pattern": held["pattern"]}, "pattern" if unstable else None


def _target(held: Schema, definitions: Mapping[str, Schema]) -> Schema:
    while "$ref" in held:
        held = definitions[held["$ref"].removeprefix("#/$defs/")]
    return held


def _is_only_counted(schema: Schema) -> bool:
    return schema.keys().isdisjoint(("pattern", "$ref", "allOf", "anyOf", "oneOf"))


def _counted(schema: Schema) -> Format:
    """Text of a length, whose first and last character stay when white space is taken off."""
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    if most == 0:
        return {"type": "const_string", "value": ""}
    edge = f"[^{SPACE}<]"
    longer = f"{edge}[^<]{{{max(least - 2, 0)},{'' if most is None else int(most) - 2}}}{edge}"
    options = ([edge] if least < 2 else []) + ([longer] if most is None or most > 1 else [])
    return {"type": "regex", "pattern": f"({'|'.join(options)}){'' if least else '?'}"}


def _writes_space(pattern: Pattern) -> bool:
    match pattern:
        case Chars(ranges):
            return any(chr(code).isspace() for low, high in ranges for code in range(low, min(high, 0x3000) + 1))
        case Joined(items) | Either(items):
            return any(_writes_space(item) for item in items)
        case Repeated(item):
            return _writes_space(item)
        case _:
            return False
