"""What an episode stores, and the forms in which policies write data and pipelines."""
# R17

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from mcprl_market.python.programs import json_value, read_json
from mcprl_market.python.server import (
    MAX_KEYS,
    MAX_STEPS,
    MAX_STORED_BYTES,
    EpisodeContext,
    steps_of,
)
from mcprl_market.python.worker import MAX_DEPTH

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values)
def test_a_value_and_its_text_mean_the_same(value):
    assert json_value(json.dumps(value)) == value
    if not isinstance(value, str):
        assert json_value(value) == value


@pytest.mark.parametrize("text", ["", "plain words", "{'single': 1}", "[" * 100_000, "$213.88"])
def test_a_text_that_is_not_json_stays_a_text(text):
    assert json_value(text) == text


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_a_text_that_is_nested_too_deep_stays_a_text():
    assert json_value(nested(MAX_DEPTH)) != nested(MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 300, 900):
        assert json_value(nested(levels)) == nested(levels)
        with pytest.raises(ValueError, match="nested"):
            read_json(nested(levels))
        with pytest.raises(ValueError, match="nested"):
            json_value(json.loads(nested(levels)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800"', "?"),
        (r'{"\udfff": ["a\ud800b"]}', {"?": ["a?b"]}),
        (b'"\xed\xa0\x80"', "?"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'["[[\"[[", {"]": "\\"}]', ['[["[[', {"]": "\\"}]),
    ],
)
def test_half_a_surrogate_pair_is_replaced(text, value):
    assert read_json(text) == value


def test_a_value_is_kept_until_its_key_is_used_again():
    context = EpisodeContext()
    context.store("a", [1], "first")
    context.store("a", [2], "second")
    context.store("b", None, "")
    stored = context.get("a")
    assert stored is not None
    assert (stored.value, stored.description) == ([2], "second")
    assert context.values == {"a": [2], "b": None}
    assert context.get("c") is None


def test_a_context_is_bounded_in_keys_and_bytes():
    context = EpisodeContext()
    for number in range(MAX_KEYS):
        context.store(str(number), number, "")
    with pytest.raises(ToolError, match="No more than 100 results"):
        context.store("one more", 1, "")
    context.store("0", "again", "")
    with pytest.raises(ToolError, match="No more than 4 MB"):
        context.store("0", "x" * MAX_STORED_BYTES, "")
    assert context.values["0"] == "again"


def test_steps_are_codes_or_objects_and_have_names_that_differ():
    steps = steps_of(["a", {"name": "x", "code": "b"}, {"code": "c"}, {"name": "x", "code": "d", "kind": "filter"}])
    assert [(step.name, step.code) for step in steps] == [("step 1", "a"), ("x", "b"), ("step 3", "c"), ("x (4)", "d")]
    assert [step.code for step in steps_of("data + 1")] == ["data + 1"]


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ([], "needs 1 to 50 steps; there are 0"),
        (["x"] * (MAX_STEPS + 1), "there are 51"),
        (["x", {"operation": "filter"}], "Step 2 has no code"),
        ([5], "Step 1 has no code"),
        (None, "Step 1 has no code"),
    ],
)
def test_a_bad_pipeline_is_refused_with_the_expected_form(pipeline, message):
    with pytest.raises(ToolError, match=message):
        steps_of(pipeline)
