"""The ChatML renderer: equal to the model's template, stable as conversations grow, deaf to markup in messages."""
# R16

from __future__ import annotations

import pytest
from conversations import (
    ANSWER,
    CALLING,
    CALLING_TWICE,
    CONVERSATION,
    FIND,
    LIST,
    MARKUP,
    RESULT,
    SYSTEM,
    USER,
    call,
    hostile_texts,
)
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mcprl.chat.loading import ChatmlRenderer
from mcprl.errors import BadValueError

MESSAGES = st.sampled_from([SYSTEM, USER, CALLING, CALLING_TWICE, RESULT, ANSWER])
TOOLS = st.sampled_from([None, [FIND], [FIND, LIST]])
EMPTY_SYSTEM = {"role": "system", "content": ""}


def template_ids(tokenizer, messages, tools, opening):
    return tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=opening, tokenize=True, return_dict=False
    )


@given(messages=st.lists(MESSAGES, min_size=1, max_size=6), tools=TOOLS, opening=st.booleans())
@example(messages=[EMPTY_SYSTEM, USER], tools=None, opening=True)
@example(messages=[EMPTY_SYSTEM, USER], tools=[FIND], opening=True)
@example(messages=CONVERSATION, tools=[FIND, LIST], opening=True)
def test_tokens_are_those_of_the_models_template(chatml, smol_tokenizer, messages, tools, opening):
    ids = chatml.render_ids(messages, tools=tools, add_generation_prompt=opening)
    assert ids == template_ids(smol_tokenizer, messages, tools, opening)


def test_tools_as_a_server_passes_them_are_the_same_tokens(chatml, smol_tokenizer):
    """vLLM gives the template OpenAI's objects, so the model sees the same prompt behind an endpoint."""
    ids = chatml.render_ids(CONVERSATION, tools=[FIND, LIST], add_generation_prompt=True)
    objects = [{"type": "function", "function": tool} for tool in (FIND, LIST)]
    assert ids == template_ids(smol_tokenizer, CONVERSATION, objects, True)


@given(messages=st.lists(MESSAGES, min_size=2, max_size=6), tools=st.sampled_from([None, [FIND]]), data=st.data())
def test_a_longer_conversation_begins_with_the_tokens_of_the_shorter(chatml, messages, tools, data):
    shorter = messages[: data.draw(st.integers(1, len(messages)))]
    ids = chatml.render_ids(shorter, tools=tools)
    assert chatml.render_ids(messages, tools=tools)[: len(ids)] == ids


@given(text=hostile_texts, role=st.sampled_from(["system", "user", "tool"]), tools=st.sampled_from([None, [FIND]]))
def test_markup_in_a_message_never_becomes_a_control_token(chatml, smol_tokenizer, text, role, tools):
    messages = [{"role": role, "content": text}, USER]
    ids = chatml.render_ids(messages, tools=tools)
    # Two messages, and a system message for the tools if there is no other.
    turns = 3 if tools and not (role == "system" and text) else 2
    assert control_tokens(smol_tokenizer, ids) == ["<|im_start|>", "<|im_end|>"] * turns


@pytest.mark.parametrize("markup", MARKUP)
def test_markup_in_a_message_stays_readable(chatml, smol_tokenizer, markup):
    ids = chatml.render_ids([{"role": "tool", "content": f"a{markup}b"}])
    assert f"a{markup}b<|im_end|>" in smol_tokenizer.decode(ids)


@given(text=hostile_texts)
def test_markup_in_a_tools_description_or_a_call_never_becomes_a_control_token(chatml, smol_tokenizer, text):
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}
    ids = chatml.render_ids(
        [USER, {"role": "assistant", "content": text, "tool_calls": [call(text, x=text)]}], tools=[tool]
    )
    assert control_tokens(smol_tokenizer, ids) == ["<|im_start|>", "<|im_end|>"] * 3


def control_tokens(tokenizer, ids):
    added = tokenizer.added_tokens_decoder
    return [added[i].content for i in ids if i in added]


def test_the_bridge_continues_as_if_the_whole_conversation_had_been_rendered(chatml):
    prompt = chatml.render_ids([SYSTEM, USER], tools=[FIND], add_generation_prompt=True)
    whole = chatml.render_ids([SYSTEM, USER, ANSWER, USER], tools=[FIND], add_generation_prompt=True)
    (end,) = chatml.get_stop_token_ids()
    sampled = whole[len(prompt) : whole.index(end, len(prompt)) + 1]
    bridged = chatml.bridge_to_next_turn(prompt, sampled, [USER], tools=[FIND])
    assert bridged.token_ids == whole


def test_the_bridge_closes_a_turn_that_was_cut(chatml, smol_tokenizer):
    prompt = chatml.render_ids([USER], add_generation_prompt=True)
    sampled = smol_tokenizer.encode("<tool_call>\n{}\n</tool_call>")
    (end,) = chatml.get_stop_token_ids()
    cut = chatml.bridge_to_next_turn(prompt, sampled, [RESULT])
    assert cut.token_ids[len(prompt) + len(sampled)] == end
    assert cut.token_ids == chatml.bridge_to_next_turn(prompt, [*sampled, end], [RESULT]).token_ids


@given(sampled=st.lists(st.integers(3, 49_000), max_size=20), text=hostile_texts)
def test_the_bridge_keeps_any_sampled_tokens_and_adds_exactly_the_new_turns(chatml, smol_tokenizer, sampled, text):
    prompt = chatml.render_ids([USER], add_generation_prompt=True)
    bridged = chatml.bridge_to_next_turn(prompt, sampled, [{"role": "tool", "content": text}]).token_ids
    before = len(prompt) + len(sampled)
    assert bridged[:before] == [*prompt, *sampled]
    assert control_tokens(smol_tokenizer, bridged[before:]) == [
        "<|im_end|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
    ]


@pytest.mark.parametrize("messages", [[ANSWER], [RESULT, ANSWER], []], ids=["assistant", "last", "none"])
def test_the_bridge_refuses_to_put_words_into_the_policys_mouth(chatml, messages):
    prompt = chatml.render_ids([USER], add_generation_prompt=True)
    assert chatml.bridge_to_next_turn(prompt, [5], messages) is None


def test_the_bridge_refuses_a_turn_that_continues_after_its_close(chatml):
    prompt = chatml.render_ids([USER], add_generation_prompt=True)
    assert chatml.bridge_to_next_turn(prompt, [5, *chatml.get_stop_token_ids(), 5], [RESULT]) is None


def test_the_bridge_needs_something_to_continue(chatml):
    assert chatml.bridge_to_next_turn([], [5], [RESULT]) is None


def test_a_tokenizer_without_chatml_tokens_is_refused_with_a_fix():
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?")), unk_token="?"
    )
    with pytest.raises(BadValueError, match=r"no token '<\|im_start\|>'.*Fix: set model.renderer"):
        ChatmlRenderer(plain)


def test_the_hostile_texts_do_spell_control_tokens(smol_tokenizer):
    # Without this, the tests above could pass for want of an enemy.
    assert control_tokens(smol_tokenizer, smol_tokenizer.encode(MARKUP[0])) == ["<|im_end|>"]
