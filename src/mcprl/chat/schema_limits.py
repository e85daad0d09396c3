"""What a grammar holds of a tool's schema, and what it does not.

`as_grammar_schema` rewrites a schema for the `json_schema` content of a structural tag (xgrammar 0.2.8, `excludes`
set). `find_unheld` names the keywords whose meaning is lost on the way. Where it names none, every call that the
grammar admits is valid by the schema as its server wrote it (JSON Schema 2020-12, `format` an annotation).

Held, most of it by rewriting: type and lists of types; enum and const; properties, required, minProperties,
maxProperties; additionalProperties, patternProperties (one) and propertyNames without properties; dependentRequired of
a required property; items, prefixItems, minItems, maxItems; minimum, maximum and their exclusive forms; multipleOf
whole numbers; minLength and maxLength up to 128; pattern; anyOf, allOf and local $ref with what stands beside them;
oneOf whose branches cannot meet; all keywords beside an enum or a const, since those values are asked one by one.

Narrower than the schema, but never wrong: properties come in the order of the schema, once, and no others beside them;
the same for items beside prefixItems; a tool without properties takes no arguments; a schema without `type` admits the
types that its keywords speak of; strings with a pattern or a length hold no `<`, no quote, no backslash and no control
character unless `escapes` is set; `\\d`, `\\w` and `\\s` are ASCII; date, time and some other formats are kept to their
shape; integers are not written as 1.0 and fit into 64 bits, other numbers have no exponent, at most six decimals and at
most 2**53; an enum loses the values that hold an excluded text.

Unheld: not; if with then or else; dependencies, dependentSchemas; dependentRequired of an optional property;
uniqueItems; contains; unevaluatedProperties and unevaluatedItems beside schemas in place; multipleOf fractions, or
beside wide bounds; bounds past 64 bits; minProperties above 1 for free names; several patternProperties; oneOf whose
branches may meet; look-around, back-references, word boundaries, Unicode classes, flags and inner anchors in patterns;
two patterns for one string; a length beside a pattern of several open ends; counts of more than 128 characters, which
xgrammar gets wrong or takes long for; references out of the schema, dynamic ones, and those that lead back to
themselves; whatever leaves no value at all, or none that ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema.validators import Draft202012Validator

from mcprl.bounds import MAX_SCHEMA_BYTES, GrammarWork, OverLimitError, measure
from mcprl.chat.grammar_schemas import GrammarSchemas
from mcprl.chat.schema_parts import Part, Unheld
from mcprl.schemas import find_problems

__all__ = ["Unheld", "as_grammar_schema", "find_unheld", "rewrite"]


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
