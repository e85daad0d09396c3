"""Schemas drawn at random over the keywords of JSON Schema: sensible ones, odd ones, and ones that contradict."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

PATTERNS = (
    *("^[a-z]+$", "[a-c]{2,3}", "^a|b$", r"^\d{2}-\d+$", r"^\S+$", "^.*$", "^[^a]+$", "(^a$|^b+$)", "^(ab|c)*$", "x"),
    *("^[<>]=?$", r"^\W\D$", "^$", "^#[0-9a-fA-F]{6}$", "^(?!a)b$", "^<a>$", '^"$', "^a.c$", r"^[\s\S]+$", "^x{2,}y*$"),
)
_NUMBERS = st.one_of(
    st.integers(-20, 20),
    st.floats(-5, 5, allow_nan=False).map(lambda number: round(number, 7)),
    st.sampled_from([0, 0.1, 1e-7, 1e10, 1e15 + 0.5, 1e20, -1e20]),
)
_COUNTS = st.integers(0, 4)
_VALUES = st.sampled_from(
    [0, 1, 1.0, 2.5, 0.1, 10**20 + 1, None, True, "", "a", "ab", "é", "x<y", "<tool_call>", {"a": 1}, {}, [], [1, "b"]]
)
_NAMES = ("a", "b", "é", "type", "$ref")
_SCALARS = ("null", "boolean", "integer", "number", "string")
_SIMPLE = st.one_of(st.booleans(), st.sampled_from(_SCALARS).map(lambda kind: {"type": kind}))


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def _all(*drawn: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*drawn).map(lambda members: {key: value for member in members for key, value in member.items()})


_STRINGS = _some(
    minLength=_COUNTS,
    maxLength=_COUNTS,
    pattern=st.sampled_from(PATTERNS),
    format=st.sampled_from(["date", "email", "uri", "json-pointer", "unknown"]),
)
_BOUNDS = _some(
    minimum=_NUMBERS,
    maximum=_NUMBERS,
    exclusiveMinimum=_NUMBERS,
    exclusiveMaximum=_NUMBERS,
    multipleOf=st.sampled_from([1, 2, 5, 7, 0.5, 100, 5000]),
)


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=3),
        minItems=_COUNTS,
        maxItems=_COUNTS,
        uniqueItems=st.booleans(),
        contains=inner,
        unevaluatedItems=inner,
    )


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(_NAMES)
    return _some(
        properties=st.dictionaries(names, inner, max_size=3),
        required=st.lists(names, max_size=2, unique=True),
        additionalProperties=inner,
        patternProperties=st.dictionaries(st.sampled_from(["^a", "^x-", "b$", "^[a-z]+$"]), inner, max_size=2),
        propertyNames=st.sampled_from([{"pattern": "^[a-c]"}, {"enum": ["a", "b", "zz"]}, {"maxLength": 1}, False]),
        minProperties=_COUNTS,
        maxProperties=_COUNTS,
        dependentRequired=st.just({"a": ["b"]}),
        dependentSchemas=inner.map(lambda schema: {"a": schema}),
        unevaluatedProperties=inner,
    )


def _typed(kind: str, keywords: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return keywords.map(lambda drawn: {**drawn, "type": kind})


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=3)
    choices = [st.fixed_dictionaries({keyword: branches}) for keyword in ("anyOf", "oneOf", "allOf")]
    references = st.sampled_from(["p", "q"]).map(lambda name: {"$ref": f"#/$defs/{name}"})
    mixed = _all(_STRINGS, _BOUNDS, _arrays(inner), _objects(inner))
    types = st.lists(st.sampled_from([*_SCALARS, "array", "object"]), min_size=1, max_size=3, unique=True)
    plain = [
        _typed("string", _STRINGS),
        _typed("integer", _BOUNDS),
        _typed("number", _BOUNDS),
        _typed("array", _arrays(inner)),
        _typed("object", _objects(inner)),
        st.lists(_VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    ]
    beside = st.one_of(*choices, references, *plain)
    return st.one_of(
        *plain,
        *choices,
        references,
        _all(mixed, types.map(lambda kinds: {"type": kinds})),
        _all(beside, beside),
        _all(beside, st.fixed_dictionaries({"not": inner})),
        _all(beside, st.fixed_dictionaries({"if": inner, "then": inner})),
    )


_INNER = st.recursive(_SIMPLE, _larger, max_leaves=6)


@st.composite
def drawn_schemas(draw: st.DrawFn) -> dict[str, Any]:
    """The schema of a tool's arguments, with definitions that may refer to each other and to themselves."""
    arguments = draw(
        _objects(_INNER)
        if draw(st.integers(0, 3)) == 0
        else st.dictionaries(
            st.just("properties"), st.dictionaries(st.sampled_from(_NAMES), _INNER, min_size=1, max_size=3), min_size=1
        )
    )
    return {"type": "object", **arguments, "$defs": {"p": draw(_INNER), "q": draw(_INNER)}}
