"""Recorded conversations in every shape that logs have: each call with its answer, a reason for each lost one."""
# R31

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.conversations import answers_in, calls_in
from mcprl.errors import CassetteError
from mcprl_synthesis.importing import infer_definition
from mcprl_synthesis.recordings import read_recordings, tools_in_prompt
from processor_time import least_s

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"
TAGS = st.sampled_from(["<think>", "</think>", "<tool_call>", "<tool_response>"])
END = re.compile("</(?:tool_call|tool_response)>")  # inside a value, it ends a block early
TEXTS = st.lists(st.text(max_size=10) | TAGS, max_size=3).map("".join).filter(lambda text: not END.search(text))
NAMES = TEXTS.filter(lambda name: name and name.isprintable())
ARGUMENTS = st.dictionaries(TEXTS, st.integers() | TEXTS | st.booleans(), max_size=3)


def assistant(*calls: tuple[str, dict], before: str = "") -> dict:
    blocks = [f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls]
    return {"role": "assistant", "content": before + "\n".join(blocks)}


def tool(value: object) -> dict:
    return {"role": "tool", "content": f"<tool_response>\n{json.dumps(value)}\n</tool_response>"}


def user(text: str = "Go on.") -> dict:
    return {"role": "user", "content": text}


@pytest.fixture
def read(tmp_path):
    """Reads conversations that were written to a file as rows of the given shape."""

    def run(*conversations: list, name: str = "log.json"):
        path = tmp_path / name
        path.write_text(json.dumps([{"prompt": messages} for messages in conversations]))
        return read_recordings([path])

    return run


def brief(recordings) -> list[tuple]:
    return [(call.tool, dict(call.arguments), call.text, call.failed) for call in recordings.calls]


def test_a_call_and_its_response_in_tags_are_read(read):
    found = read([user(), assistant(("quote", {"symbol": "A"}), before="I look."), tool({"content": "Price: 1"})])
    assert brief(found) == [("quote", {"symbol": "A"}, "Price: 1", False)]
    assert str(found.calls[0].place) == "log.json, row 1, message 2"
    assert found.unreadable == []


def test_an_error_response_is_a_failed_call(read):
    found = read([assistant(("quote", {})), tool({"error": "no matching server", "retryable": False})])
    assert brief(found) == [("quote", {}, "no matching server", True)]


def test_several_calls_of_one_message_have_their_responses_in_order(read):
    found = read([assistant(("a", {}), ("b", {"n": 1})), tool({"content": "of a"}), tool({"content": "of b"})])
    assert [(call.tool, call.text) for call in found.calls] == [("a", "of a"), ("b", "of b")]


def test_several_responses_in_one_user_message_are_read_in_order(read):
    blocks = "".join(f"<tool_response>\nof {name}\n</tool_response>\n" for name in "ab")
    found = read([assistant(("a", {}), ("b", {})), user(blocks), {"role": "assistant", "content": "Done."}])
    assert [(call.tool, call.text) for call in found.calls] == [("a", "of a"), ("b", "of b")]


def test_the_older_shape_is_read_with_the_tools_of_its_system_prompt(tmp_path):
    tools = [{"name": "quote", "description": "A price.", "parameters": {"type": "object", "properties": {}}}]
    example = '{"function_call": {"name": "quote", "arguments": {"symbol": "EXAMPLE"}}}'
    result = {"function_name": "quote", "result": "Price: 1"}
    conversation = [
        {"role": "system", "content": f"Tools [all of them]:\n\n{json.dumps(tools, indent=2)}\n\nWrite {example}"},
        user(),
        {"role": "assistant", "content": '{"function_call": {"name": "quote", "arguments": {"symbol": "A"}}}'},
        {"role": "tool", "content": f"Function result: {json.dumps(result, indent=2)}"},
        {"role": "assistant", "content": "It is 1."},
    ]
    path = tmp_path / "old.json"
    path.write_text(json.dumps([{"prompt": [user()], "extra_info": {"original_conversation": conversation}}]))
    found = read_recordings([path])
    assert brief(found) == [("quote", {"symbol": "A"}, "Price: 1", False)]
    assert list(found.tools) == ["quote"]
    assert found.tools["quote"].definition.description == "A price."


def test_openai_messages_one_row_a_line_are_paired_by_id(tmp_path):
    def call(number: int, arguments: str) -> dict:
        return {"id": f"c{number}", "type": "function", "function": {"name": f"t{number}", "arguments": arguments}}

    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call(1, '{"a": 1}'), call(2, "")]},
        {"role": "tool", "tool_call_id": "c2", "content": "second"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "first"}]},
    ]
    path = tmp_path / "log.jsonl"
    tools = [{"type": "function", "function": {"name": "t1", "description": "One.", "parameters": {}}}]
    path.write_text("\n".join(json.dumps({"messages": messages, "tools": tools}) for _ in range(2)) + "\n")
    found = read_recordings([path])
    assert brief(found) == [("t1", {"a": 1}, "first", False), ("t2", {}, "second", False)] * 2
    assert str(found.calls[-1].place) == "log.jsonl, row 2, message 1"
    assert found.tools["t1"].definition.description == "One."


def test_a_file_may_be_one_conversation_and_a_call_only_thought_of_is_none(tmp_path):
    thought = '<think>Perhaps <tool_call>{"name": "no", "arguments": {}}</tool_call>?</think>'
    path = tmp_path / "one.json"
    path.write_text(json.dumps([user(), assistant(("yes", {}), before=thought), tool({"content": "1"})]))
    assert [call.tool for call in read_recordings([path]).calls] == ["yes"]


@pytest.mark.parametrize("before", ["", "<think>Hm.</think>\n", "\n<think>a</think> <think>b</think>"])
def test_tags_of_thoughts_inside_a_call_belong_to_the_call(before):
    given = {"text": "Write <think>why</think> first, then <think>"}
    for message in (
        assistant(("say<think>", given), ("b", {}), before=before),
        {
            "role": "assistant",
            "content": before + json.dumps({"function_call": {"name": "say<think>", "arguments": given}}),
        },
    ):
        call = calls_in(message)[0]
        assert (call.name, call.arguments) == ("say<think>", given)


def test_a_structured_answer_is_its_json_and_an_object_with_other_keys_is_the_answer_itself(read):
    found = read(
        [assistant(("a", {})), tool({"content": {"price": 1}})],
        [assistant(("b", {})), tool({"content": "x", "price": 1})],
        [assistant(("c", {})), tool({"name": "c", "content": "named"})],
        [assistant(("d", {})), tool({"result": 5})],
    )
    texts = [call.text for call in found.calls]
    assert texts == ['{"price":1}', '{"content": "x", "price": 1}', "named", '{"result": 5}']


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "assistant", "content": "<tool_call>{oops}</tool_call>"}, tool({"content": ""})], "is not JSON"),
        ([{"role": "assistant", "content": '<tool_call>{"name": "a"'}, tool({"content": ""})], "no closing"),
        ([{"role": "assistant", "content": "<tool_call>[]</tool_call>"}, tool({"content": ""})], "is not an object"),
        ([assistant(("", {})), tool({"content": ""})], "does not name a tool"),
        ([assistant(("a", [])), tool({"content": ""})], "arguments are not an object"),
        ([assistant(("a", {"x": float("nan")})), tool({"content": ""})], "NaN is not a JSON number"),
        ([assistant(("a", {})), user()], "the call has no result"),
        ([assistant(("a", {}))], "the call has no result"),
        ([assistant(("a", {})), {"role": "tool", "content": "<tool_response>cut"}], "no closing </tool_response>"),
        ([assistant(("a", {})), tool({"function_name": "b", "result": "x"})], "is to 'a', but its result is from 'b'"),
        ([{"role": "assistant", "content": '{"function_call": {"name"'}, tool({"content": ""})], "is not JSON"),
        ([{"role": "assistant", "content": "", "tool_calls": [3]}, tool({"content": ""})], "is not an object"),
    ],
)
def test_a_call_that_cannot_be_read_is_counted_and_named(read, messages, why):
    found = read([user(), *messages])
    assert (found.calls, len(found.unreadable)) == ([], 1)
    assert str(found.unreadable[0].place) == "log.json, row 1, message 2"
    assert why in found.unreadable[0].why


def test_an_unreadable_call_does_not_shift_the_answers_of_the_others(read):
    broken = assistant(("a", {}), ("b", {}), ("c", {}))
    broken["content"] = broken["content"].replace('"name": "b"', '"name: "b"')
    found = read([broken, *(tool({"content": f"of {name}"}) for name in "abc")])
    assert [(call.tool, call.text) for call in found.calls] == [("a", "of a"), ("c", "of c")]
    assert len(found.unreadable) == 1


def test_calls_whose_answers_are_too_few_or_too_many_are_not_guessed(read):
    found = read([assistant(("a", {}), ("b", {})), tool({"content": "?"}), user(), tool({"content": "!"})])
    assert found.calls == []
    assert [part.why for part in found.unreadable] == [
        "2 calls cannot be matched with 1 results",
        "2 calls cannot be matched with 1 results",
        "the result does not belong to a call",
    ]


def test_rows_messages_and_lines_that_are_none_are_named(tmp_path):
    path = tmp_path / "log.jsonl"
    good = json.dumps([assistant(("a", {})), tool({"content": "1"})])
    path.write_text("\n".join(["3", '{"id": 7}', "{broken", '{"messages": ["hello"]}', good]))
    found = read_recordings([path])
    assert [call.tool for call in found.calls] == ["a"]
    assert sorted(str(part.place) for part in found.unreadable) == [
        "log.jsonl, row 1",
        "log.jsonl, row 2",
        "log.jsonl, row 3",
        "log.jsonl, row 4, message 1",
    ]


@given(st.lists(st.tuples(NAMES, ARGUMENTS, TEXTS), min_size=1, max_size=4))
def test_whatever_was_called_and_answered_is_read_back(exchanges):
    calls = calls_in(assistant(*((name, given) for name, given, _ in exchanges)))
    answers = [answers_in(tool({"content": text}))[0] for _, _, text in exchanges]
    read_back = [(call.name, call.arguments, answer.text) for call, answer in zip(calls, answers, strict=True)]
    assert read_back == exchanges


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", '"', "name", ":", " "]))
)
def test_no_text_breaks_the_reader(parts):
    text = "".join(parts)
    for call in calls_in({"role": "assistant", "content": text}):
        assert call.problem is not None or call.name
    answers_in({"role": "tool", "content": text.replace("call", "response")})
    tools_in_prompt(text)


@pytest.mark.parametrize(
    "text",
    ["<tool_call>" * 5_000, "<think>" * 5_000, '<tool_call>{"a": ["' * 5_000, '[{"a":' * 5_000, "[ {" * 5_000],
    ids=["opened", "thoughts", "broken", "nested", "lists"],
)
def test_the_time_to_read_is_linear_in_the_text(text, record_property):
    def read(content: str) -> None:
        calls_in({"role": "assistant", "content": content})
        tools_in_prompt(content)

    def growth() -> float:
        return least_s(lambda: read(text * 16)) / max(least_s(lambda: read(text)), 0.01)

    # Sixteen times the text would take 256 times as long in quadratic time. What misses the bar is measured once more.
    found = growth()
    found = found if found < 160 else min(found, growth())
    record_property("growth_16", round(found, 1))
    assert found < 160


def test_tools_are_found_in_a_block_with_one_object_a_line():
    lines = [
        json.dumps({"type": "function", "function": {"name": name, "description": "D.", "parameters": {}}})
        for name in "ab"
    ]
    assert list(tools_in_prompt("# Tools\n<tools>\n" + "\n".join(lines) + "\n</tools>\nGo [{].")) == ["a", "b"]


def test_a_list_of_something_else_is_no_list_of_tools():
    assert tools_in_prompt('People: [{"name": "Ana"}, {"name": "Bo"}]') == {}


def test_of_a_tool_that_two_rows_define_differently_the_last_counts(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {"messages": [], "tools": [{"name": name, "description": text, "parameters": {}}]}
        for name, text in (("a", "old"), ("a", "new"), ("b", "same"), ("b", "same"))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_recordings([path])
    assert found.tools["a"].definition.description == "new"


def test_a_definition_is_inferred_from_the_arguments_seen():
    calls = [{"symbol": "A", "limit": 2}, {"symbol": "B", "limit": 2.5, "tags": []}, {"symbol": None, "limit": 1}]
    definition = infer_definition("quote", calls, {})
    assert definition.parameters == {
        "type": "object",
        "properties": {
            "symbol": {"type": ["null", "string"]},
            "limit": {"type": "number"},
            "tags": {"type": "array"},
        },
        "required": ["symbol", "limit"],
    }
    assert "Inferred" in definition.description


@pytest.mark.parametrize("aliases", [{"ticker": "symbol"}, {"ticker": "symbol", "symbol": "ticker"}])
def test_an_inferred_definition_has_one_name_for_an_argument_that_was_called_by_two(aliases):
    definition = infer_definition("quote", [{"symbol": "A"}, {"symbol": "B"}, {"ticker": "C"}], aliases)
    assert definition.parameters["properties"] == {"symbol": {"type": "string"}}
    assert definition.parameters["required"] == ["symbol"]
    mostly_ticker = [{"symbol": "A"}, {"ticker": "B"}, {"ticker": "C"}]
    kept = "ticker" if "symbol" in aliases else "symbol"
    assert list(infer_definition("quote", mostly_ticker, aliases).parameters["properties"]) == [kept]


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded conversations are not beside the project")
@pytest.mark.parametrize(
    ("name", "calls"), [("recorded-train", 909), ("recorded-validation", 196), ("processed-train", 32)]
)
def test_every_call_of_the_real_logs_is_read(name, calls):
    found = read_recordings([DATA / f"{name}.json"])
    assert (len(found.calls), found.unreadable) == (calls, [])


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        *((text, "a JSON list of rows, or one row per line") for text in (b"{", b"no JSON", b"[1, 2")),
        *((content, "pass files of recorded conversations") for content in (b"\xff\xfe\x00", None)),
    ],
)
def test_following_the_advice_about_recorded_files_makes_them_readable(tmp_path, content, advice):
    path = tmp_path / "log.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CassetteError) as caught:
        read_recordings([path])
    assert str(path) in caught.value.what
    assert advice in caught.value.fix
    path.write_text(json.dumps([{"messages": [assistant(("now", {})), tool({"content": "12:00"})]}]))
    assert [call.text for call in read_recordings([path]).calls] == ["12:00"]
