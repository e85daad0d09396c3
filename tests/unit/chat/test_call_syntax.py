"""The table of how families write calls says what their renderers write."""
# R16

from __future__ import annotations

import pytest

from mcprl.chat.writing import CALL_SYNTAXES, syntax_of
from mcprl.errors import NoCallSyntaxError

TOOL = {
    "name": "find",
    "description": "",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}
CALLED = {"type": "function", "id": "functions.find:0", "function": {"name": "find", "arguments": {"query": "Ana"}}}
CONVERSATION = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "", "tool_calls": [CALLED]},
    {"role": "tool", "content": "Ana", "name": "find", "tool_call_id": "functions.find:0"},
]


@pytest.mark.parametrize("family", CALL_SYNTAXES)
def test_a_call_has_the_pieces_that_the_renderer_writes(chat_of, family):
    chat = chat_of(family)
    syntax = syntax_of(chat)
    fields = syntax.fields
    arguments = (
        '{"query": "Ana"}' if fields is None else fields.before + "query" + fields.between + "Ana" + fields.after
    )
    call = syntax.before_name + "find" + syntax.after_name + arguments + syntax.closing
    assert call in chat.decode(chat.open(CONVERSATION, [TOOL]))


@pytest.mark.parametrize("family", CALL_SYNTAXES)
def test_what_a_parser_looks_for_as_tokens_are_tokens(chat_of, family):
    chat = chat_of(family)
    for token in syntax_of(chat).tokens:
        assert len(chat.tokenizer.encode(token, add_special_tokens=False)) == 1


@pytest.mark.parametrize(
    ("family", "unwritable", "writable"),
    [
        ("qwen3", [], ["find", 'a "b"', "<a>", "a:b"]),
        ("llama-3", [], ["find", "<a>"]),
        ("qwen3.5", ["", " a", "a>b", "a\nb", 'a"'], ["find", "a.b", "a:b", "a b", "é"]),
    ],
)
def test_names_that_would_be_read_back_as_others_are_known(family, unwritable, writable):
    syntax = CALL_SYNTAXES[family]
    assert all(syntax.cannot_write(name) for name in unwritable)
    assert not any(syntax.cannot_write(name) for name in writable)


def test_a_family_that_is_not_in_the_table_is_refused(chat_of):
    with pytest.raises(NoCallSyntaxError, match="gemma4"):
        syntax_of(chat_of("gemma4"))
