"""Recorded chats: which of their tokens are the policy's, and that they are the tokens that an episode has."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from staged_episodes import Face, FunctionTools, make_config, make_task

from mcprl.chat.writing import TurnWriter
from mcprl.config import SamplingConfig
from mcprl.episodes.chats import read_chat, render_chat
from mcprl.episodes.demonstrations import Demonstrator
from mcprl.errors import BadValueError

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOL = {"type": "function", "function": {"name": "echo", "description": "A tool.", "parameters": PARAMETERS}}
END = "<|im_end|>"

# Words that are told apart by their first letter: who said them.
words = st.integers(0, 10**6)
said_by_user, said_by_tool = words.map("U{}".format), words.map("T{}".format)
said_by_policy = words.map("P{} and more.".format)
turns = st.tuples(st.just("") | said_by_policy, st.lists(said_by_tool, min_size=1, max_size=3))


def called(text: str) -> dict:
    return {"type": "function", "function": {"name": "echo", "arguments": json.dumps({"text": text})}}


def messages_of(asked: str, played: list[tuple[str, list[str]]], answer: str) -> list[dict]:
    """A chat whose tool says what it is given."""
    messages: list[dict] = [{"role": "user", "content": asked}]
    for text, given_texts in played:
        messages.append({"role": "assistant", "content": text or None, "tool_calls": list(map(called, given_texts))})
        messages += [{"role": "tool", "content": given_text} for given_text in given_texts]
    return [*messages, {"role": "assistant", "content": answer}]


def config_with(stop: tuple[str, ...]):
    return make_config().model_copy(update={"sampling": SamplingConfig(temperature=0.7, max_tokens=400, stop=stop)})


def rendered(chat, messages, *, stop=(), tools=(TOOL,), with_text=True):
    config, writer = config_with(stop), TurnWriter(chat, stop=stop)
    recorded = read_chat(messages, joins_calls=writer.joins_calls, with_text=with_text)
    return recorded, render_chat(recorded, tools, name="chat", chat=chat, writer=writer, config=config)


def written(text: str, given_texts: list[str]) -> str:
    calls = [
        f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{given_text}"}}}}\n</tool_call>'
        for given_text in given_texts
    ]
    return "\n".join([*([text] if text else []), *calls])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=said_by_user, played=st.lists(turns, max_size=3), answer=said_by_policy)
def test_the_tokens_of_the_assistant_carry_loss_and_no_others(chat, asked, played, answer):
    _, t = rendered(chat, messages_of(asked, played, answer))
    own = chat.decode([token for token, sampled in zip(t.token_ids, t.sampled, strict=True) if sampled])
    assert own == "".join(f"{written(text, given_texts)}{END}" for text, given_texts in [*played, (answer, [])])
    others = chat.decode([token for token, sampled in zip(t.token_ids, t.sampled, strict=True) if not sampled])
    assert re.search(r"P\d", others) is None
    for result in (given_text for _, given_texts in played for given_text in given_texts):
        assert f"{result}<" in others or f"{result}\n" in others
    # Each turn is in one piece, and what it is made of is in its record.
    assert [turn.sampled_ids for turn in t.turns] == [
        tuple(token for token, index in zip(t.token_ids, t.turn_index, strict=True) if index == number)
        for number in range(len(t.turns))
    ]


@pytest.mark.parametrize("stop", [(), ("</tool_call>",)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(asked=said_by_user, played=st.lists(turns, max_size=3), answer=said_by_policy)
def test_a_chat_has_the_tokens_and_the_mask_of_the_same_episode(chat, stop, asked, played, answer):
    recorded, t = rendered(chat, messages_of(asked, played, answer), stop=stop)
    tools = FunctionTools(echo=lambda text: text)
    tools.tools = [Face("echo", parameters=PARAMETERS)]
    prompt = ({"role": "user", "content": asked},)
    task = replace(make_task("same", answer=answer, max_turns=20), prompt=prompt)
    demonstrator = Demonstrator(config_with(stop), chat=chat, leases=tools, preamble=(), grammars=None)
    script = [(exchange.text, exchange.calls) for exchange in recorded.exchanges]
    episode = asyncio.run(demonstrator.demonstrate(task, script, "it"))
    assert t.token_ids == episode.token_ids
    assert t.sampled == episode.sampled
    assert t.temperature == episode.temperature


def test_where_a_turn_can_have_one_call_several_become_turns_with_their_own_results(chat):
    messages = messages_of("U1", [("P1.", ["T1", "T2"])], "P2.")
    messages.insert(-1, {"role": "user", "content": "U2"})
    recorded, _ = rendered(chat, messages, stop=("</tool_call>",))
    assert [(e.text, [c.arguments["text"] for c in e.calls]) for e in recorded.exchanges] == [
        ("P1.", ["T1"]),
        ("", ["T2"]),
        ("P2.", []),
    ]
    assert [m["content"] for e in recorded.exchanges for m in e.then] == ["T1", "T2", "U2"]


def test_thoughts_are_left_out_and_so_are_texts_beside_calls_where_the_policy_cannot_write_them(chat):
    messages = messages_of("U1", [("<think>P0</think>P1.", ["T1"])], "<think>P0\n</think>\nP2.")
    assert [e.text for e in rendered(chat, messages)[0].exchanges] == ["P1.", "P2."]
    assert [e.text for e in rendered(chat, messages, with_text=False)[0].exchanges] == ["", "P2."]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([{"role": "user", "content": "U1"}], "no assistant message"),
        ([*messages_of("U1", [], "P1."), {"role": "assistant", "content": "P2."}], "in a row"),
        ([*messages_of("U1", [], "P1.")[:1], {"role": "assistant", "content": ""}], "is empty"),
        ([{"role": "narrator", "content": "N"}, {"role": "assistant", "content": "P1."}], "'narrator' is unknown"),
        ([{"role": "tool", "content": "T1"}, {"role": "assistant", "content": "P1."}], "does not follow a call"),
        (
            [{"role": "user", "content": "U1"}, {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}, 3]}],
            "not an object",
        ),
    ],
)
def test_what_is_not_a_chat_is_refused_with_the_reason(chat, messages, why):
    with pytest.raises(BadValueError, match=why):
        rendered(chat, messages)


def test_a_chat_that_is_longer_than_the_context_is_refused(chat):
    with pytest.raises(BadValueError, match=r"tokens, but model\.context_tokens is 2048"):
        rendered(chat, messages_of("U1 " * 3000, [], "P1."))
