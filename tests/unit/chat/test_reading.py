"""Sampled turns read into prose and calls, in every family of models: nothing that can be sampled makes it fail."""

from __future__ import annotations

import pytest
from family_readers import load_family_readers
from mutations import PIECES, Fuzz, assert_recordable
from written_calls import CALLS, SAMPLED, SPECS, WRITERS, written_turns

from mcprl.chat.parsing import JSON_FAMILIES, Problem, Thinking, TurnReader, is_whole, read_text, split_thinking

CALL = '<tool_call>{"name": "a"}</tool_call>'
OTHER_FAMILIES = [family for family in WRITERS if family not in JSON_FAMILIES]

# In families that write arguments in tags, and if thinking is open, these texts are markers and not text.
PLAIN_CALLS = [call for call in CALLS if not any(tag in str(call[1]) for tag in ("tool_call>", "</think>"))]


@pytest.fixture(scope="module")
def readers(tiny_qwen3, tmp_path_factory):
    return load_family_readers(list(WRITERS), tiny_qwen3, tmp_path_factory.mktemp("families"))


def names(calls) -> list[str]:
    assert [c.problem for c in calls] == [None] * len(calls)
    return [c.name for c in calls]


# What is thinking and what is not.


@pytest.mark.parametrize(
    ("mode", "text", "thought", "rest"),
    [
        (Thinking.OPEN, "Hm.</think>Lima.", "Hm.", "Lima."),
        (Thinking.OPEN, "\n<think>Hm.</think>Lima.", "Hm.", "Lima."),
        (Thinking.OPEN, f"{CALL}?</think>{CALL}", f"{CALL}?", CALL),
        (Thinking.OPEN, f"Hm. {CALL} x", "Hm. ", f"{CALL} x"),
        (Thinking.OPEN, CALL, "", CALL),
        (Thinking.OPEN, "Hm.", "Hm.", ""),
        (Thinking.OPEN, "a</think>b</think>c", "a", "b</think>c"),
        (Thinking.OPEN, "</think>Lima.", "", "Lima."),
        (Thinking.OPTIONAL, "Lima.", "", "Lima."),
        (Thinking.OPTIONAL, " \n<think>Hm.</think>Lima.", "Hm.", "Lima."),
        (Thinking.OPTIONAL, f"<think>Hm. {CALL}", "Hm. ", CALL),
        (Thinking.OPTIONAL, "<think>Hm.", "Hm.", ""),
        (Thinking.OPTIONAL, "Lima. <think>Hm.</think>", "", "Lima. <think>Hm.</think>"),
        (Thinking.OPTIONAL, "Hm.</think>Lima.", "", "Hm.</think>Lima."),
        (Thinking.NONE, "<think>Hm.</think>Lima.", "Hm.", "Lima."),
        (Thinking.NONE, "Hm.</think>Lima.", "", "Hm.</think>Lima."),
    ],
)
def test_thinking_is_opened_by_the_prompt_or_the_turn_and_ends_once(mode, text, thought, rest):
    assert split_thinking(text, mode, call_opening="<tool_call>") == (thought, rest)


def test_where_no_tag_opens_a_call_thinking_without_an_end_is_all_there_is():
    assert split_thinking(f"Hm. {CALL}", Thinking.OPEN, call_opening=None) == (f"Hm. {CALL}", "")
    assert read_text('Hm. {"name": "a"}', "llama-3", Thinking.OPEN) == ("", ())
    assert names(read_text('Hm.</think>{"name": "a"}', "llama-3", Thinking.OPEN)[1]) == ["a"]


@pytest.mark.parametrize("mode", Thinking)
def test_a_call_drafted_in_thinking_is_never_carried_out(mode):
    prose, calls = read_text(f"<think>{CALL}</think>Lima.", "qwen3", mode)
    assert (prose, calls) == ("Lima.", ())


@pytest.mark.parametrize("family", ["qwen3.5", "kimi-k2.5", "minimax-m2"])
def test_where_the_prompt_opened_thinking_a_draft_is_none_of_the_calls(family, readers):
    it = readers[family]
    draft = it.encode(f"{WRITERS[family]([('list_slack_channels', {})])}?</think>Lima.")
    turn = it.reader.read(it.prompt_ids, draft, SPECS)
    assert (turn.prose, turn.calls) == ("Lima.", ())
    assert names(it.reader.read([], draft, SPECS).calls) == ["list_slack_channels"]


# From ids.


@pytest.mark.parametrize("family", WRITERS)
def test_every_family_reads_what_it_writes(family, readers):
    it = readers[family]
    for count in (1, 3):
        for start in range(0, len(PLAIN_CALLS), count):
            calls = PLAIN_CALLS[start : start + count]
            sampled = [*it.encode(WRITERS[family](calls)), it.stop_token_ids[0]]
            turn = it.reader.read(it.prompt_ids, sampled, SPECS)
            assert [(c.name, c.arguments, c.problem) for c in turn.calls] == [(n, a, None) for n, a in calls]
            assert turn.prose == ""
            assert turn.text == it.tokenizer.decode(sampled)


@pytest.mark.parametrize("family", ["qwen3", "llama-3"])
def test_json_families_read_any_text_in_arguments(family, readers):
    it = readers[family]
    for call in CALLS:
        turn = it.reader.read(it.prompt_ids, it.encode(WRITERS[family]([call])), SPECS)
        assert [(c.name, c.arguments, c.problem) for c in turn.calls] == [(*call, None)]


@pytest.mark.parametrize("family", WRITERS)
def test_prose_is_what_is_left_without_the_token_that_ended_the_turn(family, readers):
    it = readers[family]
    for stop in it.stop_token_ids:
        turn = it.reader.read([], [*it.encode(" It is 09:30. "), stop], SPECS)
        if family != "glm-4.5":  # It begins every turn inside parsing.
            assert (turn.prose, turn.calls) == ("It is 09:30.", ())
        assert turn.text == f" It is 09:30. {it.tokenizer.decode([stop])}"


def test_only_the_last_token_can_have_ended_the_turn(smol_tokenizer, chatml):
    end = smol_tokenizer.convert_tokens_to_ids("<|im_end|>")
    reader = TurnReader(chatml, smol_tokenizer, "chatml", Thinking.NONE, [end])
    said = smol_tokenizer.encode("Lima", add_special_tokens=False)
    assert reader.read([], [*said, end], []).prose == "Lima"
    assert reader.read([], said, []).prose == "Lima"
    assert reader.read([], [*said, end, *said], []).prose == "Lima<|im_end|>Lima"
    assert reader.read([], [end], []).prose == ""
    assert reader.read([], [], []).text == ""


def test_a_stop_token_unknown_to_the_renderer_is_not_part_of_a_call(readers):
    it = readers["kimi-k2"]
    other = it.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    reader = TurnReader(it.reader._renderer, it.tokenizer, "kimi-k2", Thinking.NONE, [*it.stop_token_ids, other])
    assert reader.read([], [*it.encode("Lima"), other], []).prose == "Lima"


def test_a_turn_cut_inside_a_character_is_read(readers):
    it = readers["qwen3"]
    ids = it.encode("🦜🦜")
    for cut in range(1, len(ids) + 1):
        assert it.reader.read([], ids[:cut], []).calls == ()


# What `renderers` says, in our words.


@pytest.mark.parametrize(
    ("family", "text", "problem"),
    [
        ("qwen3.5", "<tool_call>\n<function=a>\n", "the call has no closing marker"),
        ("qwen3.5", "<tool_call>\n{}\n</tool_call>", "the call does not use this model's call format"),
        ("glm-4.5", "<tool_call></tool_call>", "the call does not name a tool"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{oops"
            "<|tool_call_end|><|tool_calls_section_end|>",
            "the call is not valid JSON: Expecting property name enclosed in double quotes at character 1",
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{} {}"
            "<|tool_call_end|><|tool_calls_section_end|>",
            "the JSON of the call is followed by ' {}', but only the end of the call may follow",
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>[1]"
            "<|tool_call_end|><|tool_calls_section_end|>",
            "the arguments must be a JSON object",
        ),
        ("gemma4", "<|tool_call>call:a{b}<tool_call|>", "the call does not use this model's call format"),
        ("deepseek-v4", '<｜DSML｜invoke name="a">\nx</｜DSML｜invoke>', "the call does not use this model's"),
    ],
)
def test_a_call_that_cannot_be_used_says_why_in_our_words(family, text, problem, readers):
    it = readers[family]
    (call,) = it.reader.read(it.prompt_ids, it.encode(text), SPECS).calls
    assert call.arguments == {}
    assert (call.problem or "").startswith(problem)


@pytest.mark.parametrize("family", ["glm-4.5", "gemma4"])
def test_an_unknown_tool_is_left_to_those_who_know_the_others(family, readers):
    it = readers[family]
    turn = it.reader.read(it.prompt_ids, it.encode(WRITERS[family]([("no_such_tool", {"n": 1})])), SPECS)
    assert [(c.name, c.arguments, c.problem) for c in turn.calls] == [("no_such_tool", {"n": 1}, None)]


def test_a_value_that_is_not_json_is_a_string_for_the_schema_to_check(readers):
    # R17: an alias such as `ticker` for `symbol` is in no schema, and its value need not look like JSON.
    it = readers["qwen3.5"]
    written = WRITERS["qwen3.5"]([("fmp_get_quote", {"ticker": "AAPL"})])
    (call,) = it.reader.read(it.prompt_ids, it.encode(written), SPECS).calls
    assert (call.arguments, call.problem) == ({"ticker": "AAPL"}, None)


@pytest.mark.parametrize(
    "family", ["qwen3.5", "prime-qwen3", "nemotron-3", "glm-4.5", "laguna-xs.2", "hy3", "minimax-m2"]
)
def test_an_argument_that_is_not_closed_is_never_left_out_without_a_word(family, readers):
    it = readers[family]
    written = WRITERS[family]([("send_slack_message", {"channel": "#x", "message": "Hello"})])
    closing = next(tag for tag in ("</parameter>", "</arg_value>", "</arg_value:opensource>") if tag in written)
    before, _, after = written.rpartition(closing)
    (call,) = it.reader.read(it.prompt_ids, it.encode(before + after), SPECS).calls
    assert call.problem == Problem.MALFORMED.say()


@pytest.mark.parametrize("family", OTHER_FAMILIES)
@pytest.mark.parametrize("value", ["[" * 3000, "9" * 5000, '{"a":' * 3000])
def test_absurd_values_do_no_harm_in_any_family(family, value, readers):
    it = readers[family]
    if family == "deepseek-v4":
        value = value[:1200]  # Its parser takes seconds for more.
    text = WRITERS[family]([("process_mcp_data", {"data": [7]})]).replace("[7]", value)
    assert_recordable(it.reader.read(it.prompt_ids, it.encode(text), SPECS).calls)


def test_calls_by_the_thousand_are_cut_in_every_way_of_reading(readers):
    it = readers["kimi-k2"]
    (*_, last) = calls = it.reader.read([], it.encode(WRITERS["kimi-k2"]([("now", {})] * 300)), SPECS).calls
    assert len(calls) == 129
    assert last.problem == "a turn may contain at most 128 calls: the rest is ignored"


# Damage without end.


def test_twenty_thousand_damaged_texts_give_calls_that_can_be_recorded():
    fuzz = Fuzz(20_261_114, [*SAMPLED, *(turn for family in WRITERS for turn in written_turns(family))])
    modes = list(Thinking)
    usable = 0
    for count in range(10_000):
        text = fuzz.next()
        for family in ("chatml", "llama-3"):
            _, calls = read_text(text, family, modes[count % 3])
            assert_recordable(calls)
            usable += sum(call.problem is None for call in calls)
    assert usable > 100  # Damage that left no call usable would test the half of the parsers only.


@pytest.mark.parametrize("family", WRITERS)
def test_hundreds_of_damaged_turns_of_each_family_give_calls_that_can_be_recorded(family, readers):
    it = readers[family]
    turns = [it.encode(turn) for turn in written_turns(family)]
    pieces = [[token_id] for turn in turns for token_id in set(turn) & set(it.tokenizer.added_tokens_decoder)]
    pieces += [it.encode(piece) for piece in PIECES if len(piece) < 20 and piece.isprintable()]
    fuzz = Fuzz(20_261_114, turns, pieces)
    for count in range(300):
        prompt = it.prompt_ids if count % 2 else []
        assert_recordable(it.reader.read(prompt, fuzz.next(), SPECS if count % 3 else []).calls)


@pytest.mark.parametrize("family", ["qwen3.5", "glm-4.5", "hy3", "minimax-m2"])
def test_a_call_in_tags_is_whole_or_not_and_other_families_are_not_asked(family):
    written = WRITERS[family]([("a", {"x": 1, "y": "two"})])
    inner = written
    for tag in ("<tool_calls:opensource>", "<tool_call>", "<tool_call:opensource>", "<minimax:tool_call>"):
        inner = inner.replace(tag, "").replace(tag.replace("<", "</"), "")
    assert is_whole(family, inner)
    assert not is_whole(family, f"{inner}<oops")
    assert not is_whole(family, f"<oops{inner}")
    assert is_whole("kimi-k2", "<oops")
