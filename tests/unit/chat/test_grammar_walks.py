"""Whatever a grammar lets a policy sample is read back as calls that the tools accept."""
# R7

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from grammar_walks import WALK_TOOLS, Walker, admissible_ids
from jsonschema.validators import Draft202012Validator

from mcprl.chat import Chat, load_chat
from mcprl.chat.writing import CALL_SYNTAXES, syntax_of
from mcprl.grammar.calls import make_grammar
from mcprl.grammar.masks import Grammars
from mcprl.servers import make_server

pytestmark = pytest.mark.slow

PROMPT = [{"role": "user", "content": "Who is it?"}]


@pytest.fixture(scope="module")
def grammars_of() -> Callable[[Chat], Grammars]:
    """The grammars of a chat's tokenizer, made once."""
    made: dict[int, Grammars] = {}
    return lambda chat: made.setdefault(id(chat), Grammars(chat.tokenizer, len(chat.tokenizer)))


def assert_walks_are_valid(chat: Chat, grammars: Grammars, mode, tools, *, walks: int, fewest_calls: int) -> None:
    tag = make_grammar(chat, tools, mode)
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    prompt = chat.open(PROMPT, tools)
    walker = Walker(chat, grammars)
    syntax = syntax_of(chat)
    calls = 0
    for seed in range(walks):
        ids = walker.walk(tag, seed)
        if ids is None:
            continue
        turn = chat.parse(prompt, ids, tools)
        assert ids[-1] in chat.stop_token_ids
        assert not set(ids[:-1]) & set(chat.stop_token_ids)
        for call in turn.calls:
            assert call.problem is None, turn.text
            assert call.name in schemas, turn.text
            found = [error.message for error in Draft202012Validator(schemas[call.name]).iter_errors(call.arguments)]
            assert found == [], turn.text
        if syntax.opening is not None:
            assert len(turn.calls) == turn.text.count(syntax.opening), turn.text
        if mode == "act":
            assert bool(turn.prose) != bool(turn.calls), turn.text
        calls += len(turn.calls)
    assert calls >= fewest_calls


@pytest.mark.parametrize("mode", ["calls", "act"])
@pytest.mark.parametrize("family", CALL_SYNTAXES)
def test_every_call_that_a_grammar_admits_is_read_back_and_valid(chat_of, grammars_of, family, mode):
    chat = chat_of(family)
    assert_walks_are_valid(chat, grammars_of(chat), mode, WALK_TOOLS, walks=10, fewest_calls=2)


@pytest.mark.parametrize("mode", ["calls", "act"])
@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-5", "nemotron-3"])
def test_the_same_holds_with_thinking_switched_off(family_folder, family, mode):
    chat = load_chat(family_folder(family), family, thinking=False)
    grammars = Grammars(chat.tokenizer, len(chat.tokenizer))
    assert_walks_are_valid(chat, grammars, mode, WALK_TOOLS, walks=8, fewest_calls=2)


@pytest.mark.parametrize("family", ["qwen3.5", "glm-5"])
def test_an_admissible_marker_is_accepted_regardless_of_grammars_compiled_before(chat_of, family):
    """A compiler that confuses tokens would admit a marker in one place and refuse it when it comes."""
    chat = chat_of(family)
    grammars = Grammars(chat.tokenizer, len(chat.tokenizer))
    walker = Walker(chat, grammars)
    markers = {chat.tokenizer.convert_tokens_to_ids(token) for token in syntax_of(chat).tokens}
    met = set()
    for mode, tools in [("calls", WALK_TOOLS), ("act", WALK_TOOLS[:1]), ("act", WALK_TOOLS[2:]), ("calls", ())]:
        tag = make_grammar(chat, tools, mode)
        for ids in filter(None, (walker.walk(tag, seed) for seed in range(4))):
            matcher = grammars.start(tag, chat.stop_token_ids)
            for place, token in enumerate(ids):
                for marker in markers & set(admissible_ids(matcher.admissible())):
                    another = grammars.start(tag, chat.stop_token_ids)
                    for accepted in (*ids[:place], marker):
                        another.accept(accepted)
                    met.add(marker)
                matcher.accept(token)
    assert met == markers


@pytest.mark.process
def test_the_tools_of_the_shipped_servers_are_held(smol_chat):
    listed = [
        tool
        for server in ("fmp", "polygon", "tavily", "slack", "python")
        for tool in asyncio.run(make_server(server, world=7).list_tools())
    ]
    tools = [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in listed]
    assert len(tools) >= 23
    grammars = Grammars(smol_chat.tokenizer, len(smol_chat.tokenizer))
    assert_walks_are_valid(smol_chat, grammars, "act", tools, walks=10, fewest_calls=5)
