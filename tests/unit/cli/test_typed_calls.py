"""What a person may type in `mcprl play`, and what it means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.cli.play import Typed, TypingError, read_typed
from mcprl.records import ToolCall

TOOLS = {
    "quote": {"properties": {"symbol": {"type": "string"}, "limit": {"type": "integer"}, "data": {}}},
    "run": {"properties": {"code": {"type": "string"}}},
}


def read(line: str, *following: str) -> Typed:
    lines = iter(following)
    return read_typed(line, TOOLS, lambda: next(lines))


def call(name: str, /, **arguments) -> Typed:
    return Typed(calls=(ToolCall(name=name, arguments=arguments),))


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("quote", call("quote")),
        ("  quote symbol=VLKN ", call("quote", symbol="VLKN")),
        ("quote symbol=7 limit=7", call("quote", symbol="7", limit=7)),
        ("quote limit=many", call("quote", limit="many")),
        ("quote symbol='a b' data='[1, 2]'", call("quote", symbol="a b", data=[1, 2])),
        ("quote symbol=a=b", call("quote", symbol="a=b")),
        ("quote other=1", call("quote", other=1)),
        ("answer  It is 5. ", Typed(answer="It is 5.")),
        ("answer", Typed(answer="")),
        ('{"name": "quote", "arguments": {"symbol": "X"}}', call("quote", symbol="X")),
        ('{"name": "unknown"}', call("unknown")),
    ],
)
def test_a_line_is_a_call_or_the_answer(line, meaning):
    assert read(line) == meaning


def test_a_list_is_several_calls_of_one_turn():
    typed = read('[{"name": "quote"}, {"name": "run", "arguments": {"code": "1"}}]')
    assert [made.name for made in typed.calls] == ["quote", "run"]


def test_a_block_takes_the_lines_up_to_a_single_full_stop():
    assert read("run code=<<", "for i in range(2):", "    print(i)", ".", "more") == call(
        "run", code="for i in range(2):\n    print(i)"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("quotes symbol=X", "did you mean 'quote'"),
        ("It is 5", "finish with: answer"),
        ("", "finish with: answer"),
        ("quote symbol='a", "quotation mark is missing"),
        ("quote VLKN", "not name=value"),
        ("{", "not valid JSON"),
        ('{"arguments": {}}', "write a call as"),
        ("[1]", "write a call as"),
        ('{"name": "quote", "arguments": []}', "write a call as"),
    ],
)
def test_a_line_that_is_neither_says_what_to_type(line, says):
    with pytest.raises(TypingError, match=says):
        read(line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@given(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=3))
def test_any_call_can_be_typed_as_json(name, arguments):
    assert read(json.dumps({"name": name, "arguments": arguments})) == call(name, **arguments)


@given(st.text())
def test_any_text_is_a_call_an_answer_or_a_typing_error(text):
    try:
        typed = read(text, ".", ".", ".")
    except (TypingError, StopIteration):
        return
    assert typed.calls or typed.answer is not None or text.strip() == "[]"
