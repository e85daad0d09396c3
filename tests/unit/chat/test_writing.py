"""Turns that are written for the policy: read back as what they say, admissible, and ended as sampled ones end."""
# R10

from __future__ import annotations

from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcprl.chat.writing import CALL_SYNTAXES, TurnWriter, write_json
from mcprl.errors import BadValueError, NoCallSyntaxError
from mcprl.grammar.calls import make_grammar
from mcprl.grammar.masks import Grammars
from mcprl.records import ToolCall

ASKED = [{"role": "user", "content": "Who?"}]
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}, "note": {"type": "string"}}, "required": ["lat"]}
FIND = {
    "name": "find",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "near": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "exact": {"type": "boolean"},
        },
        "required": ["query"],
        "$defs": {"place": PLACE},
    },
}

# Characters, and what is dangerous in them: pieces of markers, of JSON and of calls. Tokenizers may compose characters.
plain = st.characters(codec="utf-8", exclude_categories=["Cs", "M"]).filter(lambda c: normalize("NFC", c) == c)
pieces = st.sampled_from(
    ["<", "</tool_call>", "<|im_end|>", "<think>", '"', "\\", "\n", "a < b", "<=", "é", "😀", "{}"]
)
strings = st.lists(st.one_of(pieces, st.text(plain, max_size=4)), max_size=4).map("".join)
tame = st.text(plain.filter(lambda c: c not in "<[]{}｜"), max_size=9).map(str.strip)
numbers = st.decimals(-(10**6), 10**6, places=6, allow_nan=False).map(float)
places = st.fixed_dictionaries({"lat": numbers}, optional={"note": strings})


def finds(queries):
    """Calls, with arguments in any order."""
    optional = {
        "limit": st.integers(-(10**9), 10**9),
        "near": places | st.none(),
        "tags": st.lists(strings, max_size=3),
        "exact": st.booleans(),
    }
    drawn = st.fixed_dictionaries({"query": queries}, optional=optional)
    shuffled = drawn.flatmap(lambda given: st.permutations(list(given.items())))
    return shuffled.map(lambda items: ToolCall(name="find", arguments=dict(items)))


@pytest.fixture(scope="module")
def held(chat_of):
    """A chat, its opened prompt, its writer, and the grammar of a mode in its tokenizer."""
    made = {}

    def of(family: str):
        if family not in made:
            chat = chat_of(family)
            made[family] = (chat, chat.open(ASKED, [FIND]), TurnWriter(chat), Grammars(chat.tokenizer, _size(chat)))
        return made[family]

    return of


def _size(chat) -> int:
    return max(chat.tokenizer.get_vocab().values()) + 1


@pytest.mark.parametrize("family", ["chatml", "qwen3", "llama-3"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=finds(strings))
def test_a_call_in_json_is_read_back_and_could_have_been_sampled(held, family, call):
    check_call(held(family), call)


@pytest.mark.parametrize("family", ["qwen3.5", "glm-5"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=finds(tame))
def test_a_call_in_tags_is_read_back_and_could_have_been_sampled(held, family, call):
    check_call(held(family), call)


def check_call(of_family, call: ToolCall) -> None:
    chat, prompt, writer, grammars = of_family
    ids = writer.write(prompt, "", (call,), [FIND])
    parsed = chat.parse(prompt, ids, [FIND])
    assert parsed.calls == (call,)
    assert parsed.prose == ""
    assert ids[-1] in chat.stop_token_ids
    assert not set(ids[:-1]) & set(chat.stop_token_ids)
    for mode in ("act", "calls"):
        grammars.replay(make_grammar(chat, [FIND], mode), chat.stop_token_ids, ids)  # raises if one is inadmissible


@pytest.mark.parametrize("family", CALL_SYNTAXES)
def test_in_every_family_a_call_and_an_answer_are_written_as_it_continues_turns(held, family):
    chat, prompt, writer, grammars = held(family)
    grammar = make_grammar(chat, [FIND], "act")
    call = ToolCall(name="find", arguments={"query": "Ana", "limit": 3})
    called = writer.write(prompt, "", (call,), [FIND])
    assert chat.parse(prompt, called, [FIND]).calls == (call,)
    result = chat.extend(prompt, called, [{"role": "tool", "name": "find", "content": "Lima"}], [FIND])
    then = (*prompt, *called, *result)
    answer = writer.write(then, "Ana is in Lima.", (), [FIND])
    assert chat.parse(then, answer, [FIND]).prose == "Ana is in Lima."
    for ids in (called, answer):
        grammars.replay(grammar, chat.stop_token_ids, ids)


def test_a_family_that_ends_calls_and_answers_differently_is_followed(held):
    chat, prompt, writer, _ = held("glm-5")
    call = writer.write(prompt, "", (ToolCall(name="find", arguments={"query": "Ana"}),), [FIND])
    answer = writer.write(prompt, "Lima.", (), [FIND])
    assert [chat.decode(ids[-1:]) for ids in (call, answer)] == ["<|observation|>", "<|user|>"]


def test_text_that_spells_a_control_token_does_not_become_it(held):
    chat, prompt, writer, _ = held("chatml")
    ids = writer.write(prompt, "It writes <|im_end|> at the end.", (), [FIND])
    assert not set(ids[:-1]) & set(chat.stop_token_ids)


def test_a_turn_ends_at_the_text_that_the_sampler_stops_at(chat_of):
    chat = chat_of("chatml")
    prompt = chat.open(ASKED, [FIND])
    writer = TurnWriter(chat, stop=("</tool_call>", "\nEnd"))
    call = ToolCall(name="find", arguments={"query": "</tool_call>"})
    ids = writer.write(prompt, "", (call,), [FIND])
    assert (
        chat.decode(ids) == '<tool_call>\n{"name": "find", "arguments": {"query": "\\u003c/tool_call>"}}\n</tool_call>'
    )
    assert chat.parse(prompt, ids, [FIND]).calls == (call,)
    assert writer.write(prompt, "Lima.", (), [FIND])[-1] == chat.stop_token_ids[0]
    with pytest.raises(BadValueError, match=r"sampling.stop would end the turn"):
        writer.write(prompt, "Lima.\nEnd of it.", (), [FIND])


@pytest.mark.parametrize(
    ("family", "arguments"),
    [
        ("qwen3.5", {"query": " Ana"}),  # white space at the ends of a value is not kept
        ("qwen3.5", {"query": "</parameter>\n</function>"}),
        ("chatml", {"query": "\ud800"}),
        ("chatml", {"query": float("nan")}),
    ],
)
def test_a_call_that_would_be_read_as_another_is_refused(held, family, arguments):
    _, prompt, writer, _ = held(family)
    with pytest.raises(BadValueError, match=f"cannot be written in the format of {family}"):
        writer.write(prompt, "", (ToolCall(name="find", arguments=arguments),), [FIND])


@pytest.mark.parametrize("answer", ['See <tool_call>{"name": "find", "arguments": {}}</tool_call>', "<think>Lima."])
def test_an_answer_that_would_be_parsed_differently_is_refused(held, answer):
    _, prompt, writer, _ = held("chatml")
    with pytest.raises(BadValueError, match="it would be parsed differently"):
        writer.write(prompt, answer, (), [FIND])


def test_a_family_whose_calls_are_not_known_is_named(chat_of):
    with pytest.raises(NoCallSyntaxError, match="gemma4"):
        TurnWriter(chat_of("gemma4"))


def test_properties_come_in_the_order_of_the_schema_at_every_depth():
    schema = FIND["parameters"]
    value = {"extra": 1, "near": {"note": "n", "lat": 1e-06}, "query": "q"}
    assert write_json(value, schema, schema) == '{"query": "q", "near": {"lat": 0.000001, "note": "n"}, "extra": 1}'
    pairs = {"prefixItems": [{"properties": {"b": {}, "a": {}}}], "items": {"properties": {"a": {}, "b": {}}}}
    assert write_json([{"a": 1, "b": 2}, {"b": 1, "a": 2}], pairs, pairs) == '[{"b": 2, "a": 1}, {"a": 2, "b": 1}]'
    assert write_json(1e22, {}, {}) == "10000000000000000000000.0"


def test_a_schema_with_recursive_or_remote_references_is_accepted():
    schema = {
        "$ref": "#",
        "anyOf": [{"$ref": "#/$defs/no"}, {"$ref": "http://x/y"}, {"properties": {"b": {"$ref": "#"}}}],
    }
    assert write_json({"a": {"a": 1, "b": 2}, "b": 1}, schema, schema) == '{"b": 1, "a": {"a": 1, "b": 2}}'
