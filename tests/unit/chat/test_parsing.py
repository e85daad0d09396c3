"""Parsing tool calls: any text becomes calls, or problems that the policy can read."""

from __future__ import annotations

import doctest
import gc
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mutations import assert_recordable
from slow_texts import TAGGED, cpu_ms, growth

from mcprl.chat import parsing
from mcprl.chat.parsing import MAX_CALLS, Problem, checked_call, parse_tool_calls

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


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


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


def test_an_unusable_call_does_not_affect_its_neighbours():
    _, calls = parse_tool_calls(f"{written('a', {})}<tool_call>{{oops</tool_call>{written('c', {})}")
    assert [(c.name, c.problem is None) for c in calls] == [("a", True), ("", False), ("c", True)]


def test_a_missing_quote_does_not_affect_the_next_call():
    _, calls = parse_tool_calls(f'<tool_call>{{"name: "a"}}</tool_call> {written("c", {})}')
    assert [(c.name, c.problem is None) for c in calls] == [("", False), ("c", True)]


def test_tags_inside_a_text_are_part_of_the_text():
    code = "print('</tool_call><tool_call>{}</tool_call>')"
    prose, calls = parse_tool_calls(f"So: {written('run', {'code': code})} and {written('b', {})}")
    assert prose == "So: and"
    assert [(c.name, c.arguments, c.problem) for c in calls] == [("run", {"code": code}, None), ("b", {}, None)]


def test_arguments_may_be_left_out():
    (call,) = parse_tool_calls('<tool_call>{"name": "list_people"}</tool_call>')[1]
    assert (call.name, call.arguments, call.problem) == ("list_people", {}, None)


@pytest.mark.parametrize(
    ("body", "name", "problem"),
    [
        ("", "", "the call is not valid JSON: Expecting value at character 0, before '</tool_call>'"),
        (" oops", "", "the call is not valid JSON: Expecting value at character 1, before 'oops</tool_call>'"),
        ('{"name": "a", }', "", "the call is not valid JSON: Expecting property name enclosed in double quotes at"),
        ("{'name': 'a'}", "", "the call is not valid JSON"),
        ('{"name": "a', "", "the call is not valid JSON: Unterminated string starting at character 9, before"),
        ('{"name": "a\nb"}', "", "the call is not valid JSON: Invalid control character at character 11, before"),
        ('{"name": "a"} {"name": "b"}', "a", 'the JSON of the call is followed by \'{"name": "b"}</tool_call'),
        ('{"name": "a"}}', "a", "but only </tool_call> may follow"),
        ("[" * 100_000, "", "the call is nested too deeply: the limit is 100 levels"),
        ('{"name": "a", "arguments": {"x":' + "[" * 100 + "]" * 100 + "}}", "a", "nested too deeply"),
        ('{"name": "a", "arguments": {"n": ' + "9" * 5000 + "}}", "", "a number with too many digits"),
        ("[1, 2]", "", 'the call must be a JSON object with "name" and "arguments"'),
        ('"find_person"', "", "the call must be a JSON object"),
        ('{"arguments": {}}', "", 'the call does not name a tool: "name" must be the name of a tool'),
        ('{"name": ""}', "", "the call does not name a tool"),
        ('{"name": 3}', "", "the call does not name a tool"),
        ('{"name": "a", "arguments": "x"}', "a", 'the arguments must be a JSON object, in "arguments"'),
        ('{"name": "a", "arguments": [1]}', "a", "the arguments must be a JSON object"),
        ('{"name": "a", "arguments": null}', "a", "the arguments must be a JSON object"),
        (
            '{"name": "a", "parameters": {}}',
            "a",
            "the arguments must be in \"arguments\", but the call has 'parameters'",
        ),
        ('{"name": "a", "symbol": "X", "n": 1}', "a", "but the call has 'symbol'"),
        ('{"name": "a", "arguments": {"x": NaN}}', "a", "NaN or an infinite number"),
        ('{"name": "a", "arguments": {"x": 1e999}}', "a", "NaN or an infinite number"),
        ('{"name": "a", "arguments": {"x": ["\\ud800"]}}', "a", "half of a surrogate pair"),
        ('{"name": "a\\udc00", "arguments": {}}', "a?", "half of a surrogate pair"),
        ('{"name": "a\\udc00", "arguments": 3}', "a?", "the arguments must be a JSON object"),
    ],
)
def test_a_call_that_cannot_be_used_says_why(body, name, problem):
    (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>")[1]
    assert (call.name, call.arguments) == (name, {})
    assert problem in (call.problem or "")


@pytest.mark.parametrize(("body", "name"), [('{"name": "a"} and more', "a"), ('{"name": "a', ""), ("", "")])
def test_an_unclosed_call_says_so_and_consumes_the_rest(body, name):
    prose, calls = parse_tool_calls(f"So: <tool_call>{body}")
    assert prose == "So:"
    assert [(c.name, c.problem) for c in calls] == [(name, "the call has no closing </tool_call>")]


@pytest.mark.parametrize(("levels", "usable"), [(99, True), (100, False), (500, False), (100_000, False)])
def test_arguments_may_be_nested_a_hundred_levels_deep(levels, usable):
    # The arguments themselves are one level.
    call = checked_call("a", {"x": nested(levels)})
    assert call.problem == (None if usable else "the call is nested too deeply: the limit is 100 levels")


def test_brackets_in_strings_do_not_count_as_nesting():
    assert checked_call("a", {'\\"[{': '[{"' * 500, "x": [[]] * 200}).problem is None


def test_a_turn_has_a_hundred_and_twenty_eight_calls_at_most():
    prose, calls = parse_tool_calls(written("a", {}) * MAX_CALLS + "Done.")
    assert (prose, len(calls), {c.problem for c in calls}) == ("Done.", MAX_CALLS, {None})
    prose, calls = parse_tool_calls(written("a", {}) * 1000 + "Done.")
    assert (prose, len(calls)) == ("", MAX_CALLS + 1)
    assert [c.problem for c in calls[MAX_CALLS:]] == ["a turn may contain at most 128 calls: the rest is ignored"]


def test_every_problem_is_known_by_its_sentence():
    sentences = {kind: kind.say(**dict.fromkeys(places(kind), "x")) for kind in Problem}
    assert {kind: Problem.of(sentence) for kind, sentence in sentences.items()} == {kind: kind for kind in Problem}


def places(kind: Problem) -> list[str]:
    return [part.split("}")[0] for part in kind.split("{")[1:]]


def test_the_collector_is_as_it_was_after_a_turn_is_read():
    parse_tool_calls("<tool_call>{</tool_call>" + written("a", {}))
    assert gc.isenabled()
    gc.disable()
    try:
        parse_tool_calls(written("a", {}))
        assert not gc.isenabled()
    finally:
        gc.enable()


@given(name=NAMES, arguments=ARGUMENTS)
def test_a_call_that_was_written_is_read_back(name, arguments):
    prose, calls = parse_tool_calls(written(name, arguments))
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
    _, calls = parse_tool_calls(text)
    assert len(calls) <= text.count("<tool_call>")
    assert_recordable(calls)


@given(name=NAMES, arguments=ARGUMENTS, data=st.data())
def test_no_damage_to_a_real_call_makes_the_parser_raise(name, arguments, data):
    text = f"Well. {written(name, arguments)}"
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    assert_recordable(parse_tool_calls(text[:start] + data.draw(st.text(max_size=5)) + text[stop:])[1])


# What a parser may look for again and again. Of the other shapes, the test after this one sees a square as well.
IN_THE_GATE = {
    *("a string of tags", "a string without an end, of tags", "too deep", "beginnings of tags"),
    *("calls that break in a string", "calls after much prose", "opening tags and white space"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize(
    "shape", [pytest.param(shape, marks=[] if shape in IN_THE_GATE else [pytest.mark.full]) for shape in TAGGED]
)
def test_time_grows_with_the_text_and_not_with_its_square(shape, record_property):
    # Twice the text takes twice as long if time is linear and 4 times as long if it is quadratic. The bar of
    # bench/parser_fuzz.py is 2.2; here it leaves room for what else the machine does, and a second measurement.
    found = growth(parse_tool_calls, TAGGED[shape])
    found = found if found < 2.6 else min(found, growth(parse_tool_calls, TAGGED[shape]))
    record_property("growth", round(found, 2))
    assert found < 2.6


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("shape", TAGGED)
def test_a_quarter_of_a_megabyte_is_read_in_a_moment(shape):
    # The bar of bench/parser_fuzz.py is 50 ms. Here it leaves room for what else the machine does.
    assert cpu_ms(parse_tool_calls, TAGGED[shape](1 << 18)) < 1500


def test_the_examples_in_the_documentation_hold():
    assert tuple(doctest.testmod(parsing)) == (0, 9)
