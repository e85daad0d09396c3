"""Chat: one conversation, opened once and extended turn by turn, for ChatML and for a family of `renderers`."""

from __future__ import annotations

import pytest
from conversations import ANSWER, FIND, RESULT, SYSTEM, USER, hostile_texts
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import UnbridgeableError

CALL = '<tool_call>\n{"name": "find_person", "arguments": {"name": "Ana"}}\n</tool_call>'


@pytest.fixture(params=["smol", "qwen"])
def chat(request):
    return request.getfixturevalue(f"{request.param}_chat")


@pytest.fixture
def tokenizer(request, chat):
    return request.getfixturevalue(f"{request.node.callspec.params['chat']}_tokenizer")


def sampled(chat, tokenizer, text):
    return (*tokenizer.encode(text), chat.stop_token_ids[0])


def test_a_conversation_opens_with_tools_and_messages_and_ends_at_the_policys_turn(chat):
    text = chat.decode(chat.open([SYSTEM, USER], [FIND]))
    assert text.count(SYSTEM["content"]) == 1
    assert USER["content"] in text
    assert '"find_person"' in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_conversation_without_tools_mentions_none(chat):
    assert "tool" not in chat.decode(chat.open([USER], []))


def test_a_turn_ends_at_the_end_token(chat, tokenizer):
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in chat.stop_token_ids


def test_a_turn_is_read_as_text_prose_and_calls(chat, tokenizer):
    prompt = chat.open([USER], [FIND])
    turn = chat.parse(prompt, sampled(chat, tokenizer, f"Let me see. {CALL}"), [FIND])
    assert turn.text == f"Let me see. {CALL}<|im_end|>"
    assert turn.prose == "Let me see."
    assert [(c.name, c.arguments, c.problem) for c in turn.calls] == [("find_person", {"name": "Ana"}, None)]


def test_several_calls_of_a_turn_are_read_in_order(chat, tokenizer):
    turn = chat.parse(
        chat.open([USER], [FIND]), sampled(chat, tokenizer, f"{CALL}\n{CALL.replace('Ana', 'Luz')}"), [FIND]
    )
    assert [c.arguments["name"] for c in turn.calls] == ["Ana", "Luz"]


def test_thinking_is_not_prose(qwen_chat, qwen_tokenizer):
    turn = qwen_chat.parse(
        qwen_chat.open([USER], []), sampled(qwen_chat, qwen_tokenizer, "<think>\nHm.\n</think>\n\nIt is Lima."), []
    )
    assert turn.prose == "It is Lima."
    assert "Hm." in turn.text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "find_person", "arg\n</tool_call>',
        '<tool_call>\n{"name": "find_person"',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": {"x": "\\ud800"}}\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": {"x": NaN}}\n</tool_call>',
        f"<tool_call>\n{'[' * 5000}\n</tool_call>",
        f'<tool_call>\n{{"name": "a", "arguments": {{"x": {"9" * 5000}}}}}\n</tool_call>',
    ],
    ids=["json", "unclosed", "name", "arguments", "surrogate", "nan", "deep", "long"],
)
def test_a_call_that_cannot_be_used_is_a_problem_and_no_exception(chat, tokenizer, text):
    (call,) = chat.parse(chat.open([USER], [FIND]), sampled(chat, tokenizer, text), [FIND]).calls
    assert call.problem
    assert call.arguments == {}


def test_a_problem_reaches_the_policy_as_it_was_written(smol_chat, smol_tokenizer):
    (call,) = smol_chat.parse((), smol_tokenizer.encode("<tool_call>{}"), []).calls
    assert call.problem == "the call has no closing </tool_call>"


@given(ids=st.lists(st.integers(0, 49_151), max_size=30))
def test_no_tokens_make_parsing_raise(smol_chat, ids):
    assert smol_chat.parse((), ids, []).text == smol_chat.decode(ids)


@given(
    ids=st.lists(st.integers(0, 151_668) | st.sampled_from([151_657, 151_658, 151_667, 151_668, 90, 92]), max_size=30)
)
def test_no_tokens_make_parsing_by_a_family_raise(qwen_chat, ids):
    assert qwen_chat.parse((), ids, []).text == qwen_chat.decode(ids)


def test_a_conversation_is_extended_by_close_messages_and_opening_only(chat, tokenizer):
    prompt = chat.open([USER], [FIND])
    turn = sampled(chat, tokenizer, CALL)
    text = chat.decode(chat.extend(prompt, turn, [RESULT], [FIND]))
    assert text.startswith("\n<|im_start|>")
    assert text.count(RESULT["content"]) == 1
    assert text.endswith("<|im_start|>assistant\n")
    assert CALL not in text


def test_a_turn_that_was_cut_is_closed_before_the_next(chat, tokenizer):
    prompt = chat.open([USER], [FIND])
    whole = sampled(chat, tokenizer, CALL)
    cut = chat.extend(prompt, whole[:-1], [RESULT], [FIND])
    assert cut == (whole[-1], *chat.extend(prompt, whole, [RESULT], [FIND]))


def test_tokens_that_the_tokenizer_would_have_chosen_otherwise_can_be_extended(chat, tokenizer):
    prompt = chat.open([USER], [FIND])
    letters = [tokenizer.encode(letter)[0] for letter in "America"]
    assert letters != tokenizer.encode("America")
    usual = chat.extend(prompt, sampled(chat, tokenizer, "America"), [RESULT], [FIND])
    assert chat.extend(prompt, [*letters, chat.stop_token_ids[0]], [RESULT], [FIND]) == usual


def test_messages_of_the_policy_cannot_be_put_in(chat, tokenizer):
    with pytest.raises(UnbridgeableError, match="cannot continue a conversation"):
        chat.extend(chat.open([USER], []), sampled(chat, tokenizer, "Hm."), [ANSWER], [])


def test_tokens_after_the_end_of_a_turn_are_refused_and_not_dropped(chat, tokenizer):
    turn = (*sampled(chat, tokenizer, "Hm."), tokenizer.encode("more")[0])
    with pytest.raises(UnbridgeableError):
        chat.extend(chat.open([USER], []), turn, [RESULT], [])


def structure(tokenizer, ids):
    added = tokenizer.added_tokens_decoder
    return [added[i].content for i in ids if i in added]


@given(text=hostile_texts)
def test_a_tools_result_never_becomes_a_control_token(smol_chat, smol_tokenizer, text):
    prompt = smol_chat.open([USER], [FIND])
    turn = sampled(smol_chat, smol_tokenizer, CALL)
    hostile = smol_chat.extend(prompt, turn, [{"role": "tool", "name": text, "content": text}], [FIND])
    harmless = smol_chat.extend(prompt, turn, [RESULT], [FIND])
    assert structure(smol_tokenizer, hostile) == structure(smol_tokenizer, harmless)


def test_text_without_markup_reaches_the_policy_as_the_tool_wrote_it(chat, tokenizer):
    text = '{"a": "<b>1 < 2 | 3 > 2</b>"}\n\té 東京'
    ids = chat.extend(chat.open([USER], []), sampled(chat, tokenizer, "Hm."), [{"role": "tool", "content": text}], [])
    assert text in chat.decode(ids)
