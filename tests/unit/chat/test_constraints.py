"""The grammar of a turn: what it admits, what it refuses, and which tools it does not support."""
# R7

from __future__ import annotations

import json
import re

import pytest
from grammar_walks import WALK_TOOLS

from mcprl.chat import load_chat
from mcprl.chat.rendering import control_tokens
from mcprl.errors import BadValueError, InadmissibleTokenError, NoCallSyntaxError, UnheldSchemaError
from mcprl.grammar.calls import make_grammar
from mcprl.grammar.masks import Grammars

FIND = {
    "name": "find",
    "description": "",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 50}},
        "required": ["query"],
    },
}
PING = {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS = (FIND, PING)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ANA = hermes("find", '{"query": "Ana"}')


@pytest.fixture(scope="module")
def admitted(chat_of, family_folder):
    """Whether a turn is admitted: True, or the text up to which it is. All but markers is spelled by characters."""
    made: dict = {}

    def of(family: str, mode: str, text: str, *, tools=TOOLS, thinking=None, stop=(), must_call=False):
        key = (family, mode, json.dumps(tools), thinking, stop, must_call)
        if key not in made:
            chat = chat_of(family) if thinking is None else load_chat(family_folder(family), family, thinking=thinking)
            grammars = Grammars(chat.tokenizer, len(chat.tokenizer))
            made[key] = chat, grammars, make_grammar(chat, tools, mode, stop=stop, must_call=must_call)
        chat, grammars, tag = made[key]
        marker = "|".join(map(re.escape, sorted(control_tokens(chat.tokenizer), key=len, reverse=True)))
        pieces = re.findall(f"(?:{marker})|.", text, re.DOTALL)
        ids = [token for piece in pieces for token in chat.tokenizer.encode(piece, add_special_tokens=False)]
        matcher = grammars.start(tag, chat.stop_token_ids)
        for place, token in enumerate([*ids, chat.stop_token_ids[0]]):
            try:
                matcher.accept(token)
            except InadmissibleTokenError:
                return chat.decode(ids[:place])
        return True

    return of


@pytest.mark.parametrize("mode", ["calls", "act"])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen3", ANA),
        ("qwen3", ANA + "\n" + hermes("ping", "{}")),
        ("qwen3", "<think>\nAna, then. 1 < 2 </thin\n</think>\n\n" + hermes("find", '{"query": "a<b", "limit": 50}')),
        ("qwen3", "Ana is in Lima. <b>Lima</b>, 1 < 2."),
        ("qwen3", "<think></think>\n\nLima."),
        ("template", hermes("find", '{"query":"Ana","limit":7}')),
        ("llama-3", '{"name": "find", "parameters": {"query": "Ana"}}'),
        ("llama-3", 'Ana is {"name": "x"}.'),
        (
            "qwen3.5",
            "Hm.</think>\n\n<tool_call>\n<function=find>\n<parameter=query>\nAna </b>\nLi\n</parameter>\n"
            "<parameter=limit>\n7\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        ),
        ("glm-5", "</think><tool_call>find<arg_key>query</arg_key><arg_value>Ana</arg_value></tool_call>"),
    ],
)
def test_a_turn_as_the_family_writes_it_is_admitted(admitted, family, text, mode):
    assert admitted(family, mode, text) is True


@pytest.mark.parametrize("text", ["", " \n", "Let me see. " + ANA, ANA + " Done.", "See </tool_call>. " + ANA + ANA])
def test_prose_and_calls_mix_freely_under_calls(admitted, text):
    assert admitted("qwen3", "calls", text) is True


@pytest.mark.parametrize("mode", ["calls", "act"])
def test_a_turn_that_must_call_is_calls_and_nothing_else(admitted, mode):
    for text in (ANA, f"{ANA}\n{hermes('ping', '{}')}", f"<think>\nAna.\n</think>\n\n{ANA}"):
        assert admitted("qwen3", mode, text, must_call=True) is True
    for text, up_to in (("", ""), ("Ana is in Lima.", ""), (f"{ANA} Done.", ANA), (f"See. {ANA}", "")):
        assert admitted("qwen3", mode, text, must_call=True) == up_to


CALL = '<tool_call>\n{"name": "'


@pytest.mark.parametrize("mode", ["calls", "act"])
@pytest.mark.parametrize(
    ("text", "up_to"),
    [
        pytest.param(hermes("fetch", '{"query": "Ana"}'), CALL + "f", id="unknown tool"),
        pytest.param(hermes("find", '{"limit": 7}'), CALL + 'find", "arguments": {"', id="missing argument"),
        pytest.param(hermes("find", "{}"), CALL + 'find", "arguments": {', id="no argument at all"),
        pytest.param(hermes("find", '{"query": 7}'), CALL + 'find", "arguments": {"query": ', id="wrong type"),
        pytest.param(hermes("find", '{"query": "a", "limit": 51}'), '"limit": 5', id="beyond a bound"),
        pytest.param(hermes("find", '{"query": "a", "x": 1}'), 'find", "arguments": {"query": "a", "', id="unknown"),
        pytest.param(hermes("find", '{"query": "a</tool_call>'), '"a', id="a marker in a string"),
        pytest.param(hermes("find", '{"query": "a<|im_start|>'), '"a', id="a control token in a string"),
        pytest.param(hermes("find", r'{"query": "\ud83d"}'), r'"\u', id="half a character"),
        pytest.param(hermes("find", '{  "query": "a"}'), '"arguments": { ', id="white space without end"),
        pytest.param(ANA.removesuffix("\n</tool_call>"), "}", id="a call that is not closed"),
        pytest.param("<think>so" + ANA, "<think>so", id="a call in thinking"),
        pytest.param("<think>so<think>", "<think>so", id="thinking in thinking"),
        pytest.param("<think>so", "<think>so", id="an end in thinking"),
        pytest.param("Ana <think>", "Ana ", id="thinking in prose"),
    ],
)
def test_a_malformed_turn_is_refused_at_its_first_wrong_token(admitted, mode, text, up_to):
    held = admitted("qwen3", mode, text)
    assert held is not True
    assert text.startswith(held)
    assert held.endswith(up_to)


@pytest.mark.parametrize(
    ("text", "up_to"),
    [
        ("Let me see. " + ANA, "Let me see. "),
        (ANA + " Done.", ANA),
        (ANA + "\n", ANA + "\n"),
        ("", ""),
        ("\n\n", "\n\n"),
    ],
)
def test_under_act_a_turn_is_calls_or_an_answer_that_says_something(admitted, text, up_to):
    assert admitted("qwen3", "act", text) == up_to


def test_an_answer_does_not_become_a_call_over_the_edge_of_its_first_token(admitted):
    assert admitted("template", "act", "<b>") == "<"
    assert admitted("template", "act", "a<b> <tool_call") is True
    assert admitted("template", "act", "a<b> " + ANA) == "a<b> <tool_call"


def test_with_thinking_off_a_turn_does_not_think(admitted):
    assert admitted("qwen3", "calls", "<think>Hm.</think>", thinking=False) == ""
    assert admitted("qwen3", "act", "<think>Hm.</think>Lima.", thinking=False) == ""
    assert admitted("qwen3", "act", ANA, thinking=False) is True


def test_thinking_that_the_prompt_opened_is_closed_before_the_turn_ends(admitted):
    assert admitted("qwen3.5", "calls", "Hm.") == "Hm."
    assert admitted("qwen3.5", "calls", "Hm.</think>") is True


@pytest.mark.parametrize("mode", ["calls", "act"])
def test_without_tools_no_call_begins(admitted, mode):
    assert admitted("qwen3", mode, "Lima " + ANA, tools=()) == "Lima "
    assert admitted("qwen3", mode, "Lima.", tools=()) is True
    assert admitted("llama-3", mode, '{"name": "find", "parameters": {}}', tools=()) == ""


def test_llama_makes_one_call_a_turn(admitted):
    call = '{"name": "ping", "parameters": {}}'
    assert admitted("llama-3", "act", call) is True
    assert admitted("llama-3", "act", call + "\n" + call) == call


def test_a_stop_text_stays_out_of_strings_but_not_out_of_prose(admitted):
    text = hermes("find", '{"query": "so DONE"}')
    assert admitted("qwen3", "calls", text) is True
    assert admitted("qwen3", "calls", text, stop=("DONE",)) == text[: text.index("E")]
    assert admitted("qwen3", "calls", "so DONE", stop=("DONE",)) is True


def test_the_tag_that_ends_a_call_may_stop_a_turn_but_not_one_inside_it(qwen_chat):
    assert make_grammar(qwen_chat, TOOLS, "calls", stop=("</tool_call>",)) == make_grammar(qwen_chat, TOOLS, "calls")
    with pytest.raises(BadValueError, match="occurs inside every call"):
        make_grammar(qwen_chat, TOOLS, "calls", stop=('"arguments"',))


@pytest.mark.parametrize("mode", ["calls", "act"])
def test_the_same_tools_give_the_same_text_and_the_order_of_properties_is_kept(qwen_chat, mode):
    text = make_grammar(qwen_chat, TOOLS, mode)
    assert text == make_grammar(qwen_chat, json.loads(json.dumps(TOOLS)), mode)
    assert text.isascii()
    turned = {**FIND, "parameters": {**FIND["parameters"], "properties": {"limit": {}, "query": {"type": "string"}}}}
    other = make_grammar(qwen_chat, (turned, PING), mode)
    assert other != text
    assert other.index('"limit"') < other.index('"query"')


def test_a_name_is_written_as_json(admitted):
    odd = {**PING, "name": 'say "hi"'}
    assert admitted("qwen3", "act", hermes('say \\"hi\\"', "{}"), tools=(odd,)) is True


TAGS = {"name": "tag", "parameters": {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}}


def test_a_schema_that_says_more_than_a_grammar_holds_is_refused_by_name_unless_it_is_loose(qwen_chat):
    with pytest.raises(UnheldSchemaError, match=r"'tag'.*uniqueItems at /properties/tags: .*") as refused:
        make_grammar(qwen_chat, (FIND, TAGS), "calls")
    assert "add tag to sampling.loose_tools" in refused.value.fix
    assert '"tags"' in make_grammar(qwen_chat, (FIND, TAGS), "calls", loose_tools=("tag",))


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (
            {"properties": {"a": {"type": "string", "pattern": "^ ?x$"}}},
            "pattern at /properties/a: leading and trailing",
        ),
        ({"properties": {"a": {"type": "string", "enum": [" x"]}}}, "enum at /properties/a: leading and trailing"),
        ({"additionalProperties": {"type": "string"}}, "additionalProperties at the top level"),
    ],
)
def test_less_is_enforced_if_arguments_are_written_one_by_one(chat_of, schema, what):
    tool = {"name": "odd", "parameters": {"type": "object", **schema}}
    make_grammar(chat_of("qwen3"), (tool,), "calls")
    with pytest.raises(UnheldSchemaError, match=what):
        make_grammar(chat_of("qwen3.5"), (tool,), "calls")
    make_grammar(chat_of("qwen3.5"), (tool,), "calls", loose_tools=("odd",))


def test_a_name_that_would_break_the_markup_is_refused(chat_of):
    for odd in ({**PING, "name": "a>b"}, {"name": "a", "parameters": {"type": "object", "properties": {"<": {}}}}):
        with pytest.raises(UnheldSchemaError, match="cannot be written in this model family's call format"):
            make_grammar(chat_of("qwen3.5"), (odd,), "calls")


def test_a_family_without_a_known_syntax_is_refused_with_those_that_have_one(chat_of):
    with pytest.raises(NoCallSyntaxError, match="gemma4") as refused:
        make_grammar(chat_of("gemma4"), WALK_TOOLS, "calls")
    assert "qwen3" in refused.value.fix
