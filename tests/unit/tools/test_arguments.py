"""Checking arguments: what the policy is told, and that no JSON whatever makes the check itself fail."""
# R17

import copy
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcprl.tools.arguments import MAX_PROBLEM_CHARS, ArgumentCheck

RICH = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "pattern": "^[A-Z]"},
        "nights": {"type": "integer", "minimum": 1, "multipleOf": 0.5},
        "price": {"type": "number", "multipleOf": 0.01},
        "room": {"enum": ["single", "double", None, 3]},
        "tree": {"$ref": "#/$defs/node"},
        "when": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}]},
        "exact": {"const": {"a": 1}},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "patternProperties": {"^x-": {"type": "string"}},
            "additionalProperties": False,
        }
    },
}
CHECK = ArgumentCheck("book", "hotel", RICH)

NAMES = st.sampled_from([*RICH["properties"], "children", "x-note", "other"]) | st.text()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["Lima", "single"]),
    lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner),
    max_leaves=20,
)


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"children": [value]}
    return value


@given(st.dictionaries(NAMES, JSON))
@example({"city": "Lima", "tree": nested(30)})
@example({"city": "Lima", "price": 1e308})
@example({"city": "Lima", "price": 10**400})
@example({"city": "Lima", "nights": 10**400})
@example({"city": "\ud800"})
@example({"\ud800": 1})
@example({"city": "x" * 100_000, "room": "y" * 100_000})
def test_any_json_gets_a_verdict_of_one_short_line_and_is_left_as_it_was(arguments):
    before = repr(arguments)
    problem = CHECK.problem(arguments)
    assert repr(arguments) == before
    if problem is None:
        json.dumps(arguments, allow_nan=False).encode()
    else:
        assert problem.startswith("Bad arguments for book: ")
        assert "\n" not in problem
        assert len(problem) <= MAX_PROBLEM_CHARS


PLAIN = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.sampled_from(["Lima", "lima", "single", "", 1.5])


@given(st.dictionaries(st.sampled_from([*RICH["properties"], "other"]), PLAIN | st.lists(PLAIN, max_size=3)))
@example({"city": "Lima", "nights": 2.0})
@example({"city": "Lima", "price": 0.03})
def test_the_quick_verdict_is_that_of_the_library_that_explains(arguments):
    assert (CHECK.problem(arguments) is None) == Draft202012Validator(RICH).is_valid(arguments)


def test_good_arguments_have_no_problem():
    arguments = {"city": "Lima", "nights": 2, "room": None, "tree": nested(10), "when": [1, 2], "exact": {"a": 1}}
    before = copy.deepcopy(arguments)
    assert CHECK.problem(arguments) is None
    assert arguments == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing argument 'city' (string)."),
        ({"town": "Lima"}, "missing argument 'city' (string); it has no argument 'town'."),
        ({"city": "Lima", "nigths": 2}, "unknown argument 'nigths' (did you mean 'nights'?)."),
        (
            {"city": "Lima", "tree": {"x-a": "b", "qq": 1}},
            "unknown argument 'qq' (known: children) in argument 'tree'.",
        ),
        ({"city": True}, "argument 'city' must be string, not boolean."),
        ({"city": "lima"}, "argument 'city' is 'lima', which violates pattern '^[A-Z]'."),
        ({"city": "Lima", "exact": 2}, "argument 'exact' must be {\"a\": 1}, not 2."),
        ({"city": "Lima", "nights": float("inf")}, "argument 'nights' contains inf, which is not a JSON number."),
        ({"city": "Lima", "tree": nested(5000)}, "argument 'tree' is nested more than 64 levels deep."),
        ({"city": "Lima", "room": {1, 2}}, "argument 'room' contains a set, which is not a JSON value."),
    ],
)
def test_the_sentence_names_the_argument_and_what_is_expected(arguments, problem):
    assert CHECK.problem(arguments) == f"Bad arguments for book: {problem}"


def test_an_argument_that_may_be_anything_is_named_without_a_type():
    check = ArgumentCheck("note", "notes", {"type": "object", "properties": {"value": True}, "required": ["value"]})
    assert check.problem({}) == "Bad arguments for note: missing argument 'value'."


def test_a_tool_without_arguments_says_so():
    check = ArgumentCheck("now", "time", {"type": "object", "additionalProperties": False})
    assert check.problem({"zone": "x"}) == "Bad arguments for now: unknown argument 'zone' (it takes none)."


def test_an_older_dialect_is_followed():
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"n": {"type": "integer"}},
              "type": "object", "properties": {"a": {"$ref": "#/definitions/n"}}}  # fmt: skip
    assert ArgumentCheck("t", "s", schema).problem({"a": 1}) is None
    assert ArgumentCheck("t", "s", schema).problem({"a": "1"}) is not None
