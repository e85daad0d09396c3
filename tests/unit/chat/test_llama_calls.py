"""Calls of Llama 3, which have no tags: calls, answers and malformed calls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import assert_recordable
from slow_texts import BARE, TAGGED, cpu_ms, growth

from mcprl.chat.parsing import MAX_CALLS, parse_llama_calls

QUOTE = '{"name": "quote", "parameters": {"symbol": "AAPL"}}'


def read(text: str) -> list[tuple[str, dict, str | None]]:
    prose, calls = parse_llama_calls(text)
    assert prose == ""
    return [(c.name, dict(c.arguments), c.problem) for c in calls]


@pytest.mark.parametrize(
    "text",
    [
        QUOTE,
        f" \n{QUOTE}\n",
        f"<|python_tag|>{QUOTE}",
        f"\n<|python_tag|> {QUOTE};",
        '{"name": "quote", "arguments": {"symbol": "AAPL"}}',
        '{"type": "function", "name": "quote", "parameters": {"symbol": "AAPL"}}',
        '{"parameters": {"symbol": "AAPL"}, "name": "quote"}',
    ],
)
def test_a_call_is_read(text):
    assert read(text) == [("quote", {"symbol": "AAPL"}, None)]


@pytest.mark.parametrize("separator", [";", "; ", "\n", "", " ;\n; "])
def test_several_calls_are_separated_by_semicolons_or_lines(separator):
    assert read(separator.join([QUOTE, '{"name": "now"}', QUOTE])) == [
        ("quote", {"symbol": "AAPL"}, None),
        ("now", {}, None),
        ("quote", {"symbol": "AAPL"}, None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "It is 09:30.",
        '{"answer": 42}',
        '{"answer": {"name": "Ana"}} and so on',
        "{x} is a set",
        "{",
        '{"na',
        f"Let me see: {QUOTE}",
        "[1, 2]",
        '["name"]',
        "",
    ],
)
def test_an_answer_in_json_is_not_a_call(text):
    assert parse_llama_calls(f" {text}\n") == (text, ())


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ('{"name": "quote", "parameters": {"symbol": "AA', "", "not valid JSON: Unterminated string"),
        ('{"name": "quote", "parameters": {"symbol": "AAPL"}', "", "not valid JSON: Expecting ',' delimiter"),
        ('{ "name" "quote"}', "", "not valid JSON: Expecting ':' delimiter at character 9"),
        ('{"type": "function", "name": quote}', "", "not valid JSON: Expecting value"),
        ("<|python_tag|>quote.call(symbol='AAPL')", "", "not valid JSON: Expecting value at character 0"),
        ("<|python_tag|>", "", "not valid JSON: Expecting value at character 0, before the end"),
        ('<|python_tag|>{"answer": 42}', "", "does not name a tool"),
        ("<|python_tag|>[1]", "", 'must be a JSON object with "name" and "parameters"'),
        (QUOTE + "}", "quote", "the JSON of the call is followed by '}', but only another call may follow"),
        (QUOTE + " Done.", "quote", "followed by 'Done.'"),
        ('{"name": 3}', "", "does not name a tool"),
        ('{"name": "quote", "symbol": "AAPL"}', "quote", "must be in \"parameters\", but the call has 'symbol'"),
        ('{"name": "quote", "parameters": {}, "arguments": {}}', "quote", "has 'parameters' and 'arguments'"),
        ('{"name": "quote", "parameters": "AAPL"}', "quote", 'must be a JSON object, in "parameters"'),
        ('{"name": "quote", "parameters": {"x": NaN}}', "quote", "NaN or an infinite number"),
        ('{"name": "quote", "parameters": {"x": ' + "[" * 5000, "", "nested too deeply"),
        ('{"name": "quote", "parameters": {"x": ' + "9" * 5000, "", "too many digits"),
    ],
)
def test_a_call_that_went_wrong_says_why(text, name, problem):
    ((read_name, arguments, said),) = read(text)
    assert (read_name, arguments) == (name, {})
    assert problem in (said or "")


def test_a_call_that_breaks_off_leaves_those_before_it_alone():
    first, second = read(f'{QUOTE}; {{"name": "now", "para')
    assert first == ("quote", {"symbol": "AAPL"}, None)
    assert second[2] is not None


def test_a_turn_has_a_hundred_and_twenty_eight_calls_at_most():
    assert [problem for *_, problem in read(QUOTE * MAX_CALLS)] == [None] * MAX_CALLS
    problems = [problem for *_, problem in read(QUOTE * 1000)]
    assert problems[:-1] == [None] * MAX_CALLS
    assert "at most 128 calls" in (problems[-1] or "")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
VALUES = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.lists(st.booleans(), max_size=3)


@given(calls=st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=4))
def test_calls_that_were_written_are_read_back(calls):
    text = "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls)
    assert read(text) == [(name, arguments, None) for name, arguments in calls]


@given(st.text(alphabet='{}[]":;,namepr \\<|python_tag>1e\n') | st.text())
def test_no_text_makes_the_parser_raise_and_every_call_can_be_recorded(text):
    for turn in (text, '{"name"' + text, QUOTE + text):
        prose, calls = parse_llama_calls(turn)
        assert prose == "" or calls == ()
        assert_recordable(calls)


@pytest.mark.slow
@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("shape", sorted(BARE.keys() - TAGGED.keys()))
def test_time_grows_with_the_text_and_not_with_its_square(shape, record_property):
    found = growth(parse_llama_calls, BARE[shape])
    found = found if found < 2.6 else min(found, growth(parse_llama_calls, BARE[shape]))
    record_property("growth", round(found, 2))
    assert found < 2.6


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("shape", BARE)
def test_a_quarter_of_a_megabyte_is_read_in_a_moment(shape):
    # The bar of bench/parser_fuzz.py is 50 ms. Here it leaves room for what else the machine does.
    assert cpu_ms(parse_llama_calls, BARE[shape](1 << 18)) < 1500
