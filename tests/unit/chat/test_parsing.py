"""Tool calls out of text: whatever the policy writes becomes calls or problems that it can read."""

from __future__ import annotations

import doctest
import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.chat import parsing
from mcprl.chat.parsing import checked_call, parse_tool_calls

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), JSON, max_size=4)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def written(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_turn_without_a_call_is_prose():
    assert parse_tool_calls("  It is 09:30. \n") == ("It is 09:30.", ())


def test_several_calls_come_in_order_and_the_prose_around_them_is_joined():
    text = f"First {written('a', {'x': 1})} then {written('b', {})}{written('c', {'y': [2]})} done."
    prose, calls = parse_tool_calls(text)
    assert prose == "First then done."
    assert [(c.name, c.arguments, c.problem) for c in calls] == [
        ("a", {"x": 1}, None),
        ("b", {}, None),
        ("c", {"y": [2]}, None),
    ]


def test_a_call_that_cannot_be_used_does_not_take_its_neighbours_along():
    _, calls = parse_tool_calls(f"{written('a', {})}<tool_call>{{oops</tool_call>{written('c', {})}")
    assert [(c.name, c.problem is None) for c in calls] == [("a", True), ("", False), ("c", True)]


def test_arguments_may_be_left_out():
    (call,) = parse_tool_calls('<tool_call>{"name": "list_people"}</tool_call>')[1]
    assert (call.name, call.arguments, call.problem) == ("list_people", {}, None)


@pytest.mark.parametrize(
    ("body", "name", "problem"),
    [
        ("", "", "not valid JSON: Expecting value at character 0"),
        ('{"name": "a", }', "", "not valid JSON"),
        ("{'name': 'a'}", "", "not valid JSON"),
        ("[" * 100_000, "", "nested too deeply"),
        ('{"name": "a", "arguments": {"n": ' + "9" * 5000 + "}}", "", "a number too long"),
        ("[1, 2]", "", 'must be a JSON object with "name" and "arguments"'),
        ('"find_person"', "", "must be a JSON object"),
        ('{"arguments": {}}', "", 'has no "name"'),
        ('{"name": ""}', "", 'has no "name"'),
        ('{"name": 3}', "", 'has no "name"'),
        ('{"name": "a", "arguments": "x"}', "a", '"arguments" must be a JSON object'),
        ('{"name": "a", "arguments": [1]}', "a", '"arguments" must be a JSON object'),
        ('{"name": "a", "arguments": null}', "a", '"arguments" must be a JSON object'),
        ('{"name": "a", "arguments": {"x": NaN}}', "a", "a number that is infinite or none"),
        ('{"name": "a", "arguments": {"x": 1e999}}', "a", "a number that is infinite or none"),
        ('{"name": "a", "arguments": {"x": ["\\ud800"]}}', "a", "half of a surrogate pair"),
        ('{"name": "a\\udc00", "arguments": {}}', "a?", "half of a surrogate pair"),
        ('{"name": "a\\udc00", "arguments": 3}', "a?", '"arguments" must be a JSON object'),
    ],
)
def test_a_call_that_cannot_be_used_says_why(body, name, problem):
    (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>")[1]
    assert (call.name, call.arguments) == (name, {})
    assert problem in (call.problem or "")


def test_a_call_without_an_end_says_so_and_takes_the_rest():
    prose, calls = parse_tool_calls('So: <tool_call>{"name": "a"} and more')
    assert prose == "So:"
    assert [c.problem for c in calls] == ["the call has no closing </tool_call>"]


def test_arguments_nested_too_deeply_to_be_written_again_are_a_problem():
    nested: object = 0
    for _ in range(100_000):
        nested = [nested]
    assert checked_call("a", {"x": nested}).problem == "the call is nested too deeply"


@given(name=NAMES, arguments=ARGUMENTS)
def test_a_call_that_was_written_is_read_back(name, arguments):
    text = written(name, arguments)
    prose, calls = parse_tool_calls(text)
    if "</tool_call>" in json.dumps([name, arguments]):
        return
    assert prose == ""
    assert [(c.name, c.arguments, c.problem) for c in calls] == [(name, arguments, None)]


pieces = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"name"',
        ":",
        '"arguments"',
        '"\\ud800"',
        "NaN",
        "[",
        "]",
        ",",
        "1e999",
        "\x00",
    ]
)


@given(st.text() | st.lists(pieces | st.text(max_size=4), max_size=30).map("".join))
@example("<tool_call>" * 3)
def test_no_text_makes_the_parser_raise_and_every_call_can_be_recorded(text):
    assert_recordable(text)


@given(name=NAMES, arguments=ARGUMENTS, data=st.data())
def test_no_damage_to_a_real_call_makes_the_parser_raise(name, arguments, data):
    text = f"Well. {written(name, arguments)}"
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    assert_recordable(text[:start] + data.draw(st.text(max_size=5)) + text[stop:])


def assert_recordable(text: str) -> None:
    _, calls = parse_tool_calls(text)
    assert len(calls) <= text.count("<tool_call>")
    for call in calls:
        assert call.problem != ""
        json.dumps([call.name, call.arguments, call.problem], ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize(
    "piece",
    ["<tool_call></tool_call>", "<tool_call>", "</tool_call>", '<tool_call>{"name": "a"}</tool_call> x ', "<", "\n"],
)
def test_time_grows_with_the_text_and_not_with_its_square(piece):
    def seconds(characters: int) -> float:
        text = piece * (characters // len(piece))
        times = []
        for _ in range(3):
            started = time.perf_counter()
            parse_tool_calls(text)
            times.append(time.perf_counter() - started)
        return min(times)

    # Four times the text takes 4 times as long where time is linear and 16 times where it is quadratic. What takes less
    # than a few milliseconds is too short to compare, and quick enough.
    assert seconds(1_000_000) < 9 * max(seconds(250_000), 0.005)


def test_the_examples_in_the_documentation_hold():
    result = doctest.testmod(parsing)
    assert (result.attempted, result.failed) == (1, 0)
