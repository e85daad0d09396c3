"""Which keywords of a schema a grammar enforces, one by one and over random schemas.

The oracle for schemas is jsonschema (Draft 2020-12), the oracle for grammars is xgrammar itself.
"""
# R7

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import xgrammar as xgr
from drawn_schemas import drawn_schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from keyword_cases import CORRECTED, HELD, INTEGER, NARROWER, REFUSED, STRING, UNHELD, tool, written

from mcprl.grammar.schema_parts import Unheld
from schema_walks import EXCLUDES, Walker, as_grammar_schema, find_unheld, part_at, walker_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def walker(smollm2) -> Walker:
    return walker_of(smollm2)


@pytest.mark.parametrize(("schema", "admitted", "refused"), [case[1:] for case in HELD], ids=[case[0] for case in HELD])
def test_a_keyword_that_is_not_reported_is_enforced(walker, schema, admitted, refused):
    assert find_unheld(schema, excludes=EXCLUDES) == find_unheld(schema, excludes=EXCLUDES, escapes=True) == ()
    forms = [as_grammar_schema(schema, excludes=EXCLUDES, escapes=escapes) for escapes in (False, True)]
    is_valid = Draft202012Validator(schema).is_valid
    for form in forms[:1] if forms[0] == forms[1] else forms:
        grammar = walker.compile(form)
        for call in map(written, admitted):
            assert is_valid(json.loads(call))
            assert walker.admits(grammar, call), call
        for call in map(written, refused):
            assert not is_valid(json.loads(call))
            assert not walker.admits(grammar, call), call


@pytest.mark.parametrize(("schema", "path", "keyword", "call"), UNHELD)
def test_a_keyword_that_xgrammar_would_ignore_is_reported(walker, schema, path, keyword, call):
    assert (path, keyword) in {(unheld.path, unheld.keyword) for unheld in find_unheld(schema, excludes=EXCLUDES)}
    assert keyword in part_at(schema, path)
    call = written(call)
    assert not Draft202012Validator(schema).is_valid(json.loads(call))
    assert walker.admits(walker.compile(schema), call)
    assert walker.admits(walker.compile(as_grammar_schema(schema, excludes=EXCLUDES)), call)


@pytest.mark.parametrize(("schema", "path", "keyword"), REFUSED)
def test_an_unsupported_keyword_is_reported_and_the_rest_still_compiles(walker, schema, path, keyword):
    assert (path, keyword) in {(unheld.path, unheld.keyword) for unheld in find_unheld(schema, excludes=EXCLUDES)}
    assert keyword in part_at(schema, path)
    walker.compile(as_grammar_schema(schema, excludes=EXCLUDES))


@pytest.mark.parametrize(("schema", "call"), [case[1:] for case in NARROWER], ids=[case[0] for case in NARROWER])
def test_a_grammar_may_admit_less_than_its_schema(walker, schema, call):
    assert find_unheld(schema, excludes=EXCLUDES) == ()
    assert Draft202012Validator(schema).is_valid(json.loads(written(call)))
    assert not walker.admits(walker.compile(as_grammar_schema(schema, excludes=EXCLUDES)), written(call))


@pytest.mark.parametrize(("schema", "call"), CORRECTED)
def test_rewriting_corrects_what_xgrammar_gets_wrong(walker, schema, call):
    call = written(call)
    assert walker.admits(walker.compile(schema), call)
    assert find_unheld(schema, excludes=EXCLUDES, escapes=True) == ()
    assert not walker.admits(walker.compile(as_grammar_schema(schema, excludes=EXCLUDES, escapes=True)), call)


def test_annotations_and_unknown_keywords_are_dropped():
    annotated = {
        **INTEGER,
        "title": "N",
        "description": "d",
        "default": 7,
        "examples": [1],
        "x-order": 3,
        "nullable": True,
    }
    schema = {**tool(annotated), "$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": "c"}
    assert find_unheld(schema) == ()
    assert as_grammar_schema(schema) == as_grammar_schema(tool(INTEGER))


def test_a_string_with_a_length_may_have_escaped_characters_if_the_call_is_json(walker):
    schema = tool({**STRING, "minLength": 1, "maxLength": 4})
    grammar = walker.compile(as_grammar_schema(schema, excludes=EXCLUDES, escapes=True))
    assert walker.admits(grammar, written(['"\n\\a']))
    assert walker.admits(grammar, r'{"v": "a\u003cb"}')
    assert not walker.admits(grammar, written(["a<b"]))
    assert not walker.admits(grammar, written(['"\n\\ab']))
    assert not walker.admits(walker.compile(as_grammar_schema(schema, excludes=EXCLUDES)), written(["\n"]))


@pytest.mark.parametrize("pattern", ['^a"b$', r'^a(\\|"|\n)b$', "^[^x]*$", "^a.?.?.?.?$", "^[^b]{0,5}$"])
def test_escapes_write_the_characters_that_a_pattern_requires(walker, pattern):
    """Not always: if some text needs no escape, xgrammar may omit the texts that do."""
    schema = tool({**STRING, "pattern": pattern})
    assert find_unheld(schema, excludes=EXCLUDES, escapes=True) == ()
    grammar = walker.compile(as_grammar_schema(schema, excludes=EXCLUDES, escapes=True))
    texts = ['a"b', "a\\b", "a\nb", "c", "a", '""', "<b", 'a"<\t']
    matching = [text for text in texts if re.search(pattern, text)]
    calls = [json.dumps({"v": text}).replace("<", "\\u003c") for text in texts]
    assert [text for text, call in zip(texts, calls, strict=True) if walker.admits(grammar, call)] == matching


def test_values_with_an_excluded_text_leave_no_dead_end(walker):
    """xgrammar drops such values, and then admits the name of a property that has no value left."""
    schema = {"properties": {"a": {"enum": ["</b>"]}, "b": INTEGER}}
    assert [unheld.keyword for unheld in find_unheld(schema, excludes=EXCLUDES)] == ["enum"]
    assert find_unheld(schema) == ()
    mixed = {"properties": {"a": {"enum": ["</b>", "x"]}}, "required": ["a"]}
    assert find_unheld(mixed, excludes=EXCLUDES) == ()
    grammar = walker.compile(as_grammar_schema(mixed, excludes=EXCLUDES))
    assert [json.loads(walker.walk(grammar, random.Random(seed), budget=0)) for seed in range(3)] == [{"a": "x"}] * 3


def test_an_unenforced_keyword_is_reported_with_a_reason():
    schema = tool({"type": "array", "uniqueItems": True})
    assert find_unheld(schema) == (Unheld("/properties/v", "uniqueItems", "a grammar cannot compare items"),)


@pytest.mark.parametrize("pattern", [{"minLength": 1, "maxLength": 128}, {"pattern": r"^\S{1,60}$"}])
@pytest.mark.parametrize("escapes", [False, True], ids=["plain", "escapes"])
def test_every_token_that_is_admitted_in_a_counted_string_is_accepted(walker, pattern, escapes):
    """Beyond a count of 128, the masks of xgrammar admit tokens that its matcher refuses."""
    schema = tool({**STRING, **pattern})
    assert find_unheld(schema, escapes=escapes) == ()
    matcher = xgr.GrammarMatcher(walker.compile(as_grammar_schema(schema, escapes=escapes)))
    assert matcher.accept_string('<tool_call>{"v": "aa')
    row = xgr.allocate_token_bitmask(1, walker.vocab_size)
    matcher.fill_next_token_bitmask(row)
    admitted = np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little"))
    assert len(admitted) > 10_000
    assert all(matcher.fork().accept_token(int(token)) for token in admitted[::7])


@settings(suppress_health_check=list(HealthCheck))
@given(schema=drawn_schemas(), escapes=st.booleans(), seed=st.integers(0, 2**32))
def test_every_call_that_a_grammar_admits_is_valid_unless_a_keyword_is_reported(walker, schema, escapes, seed):
    unheld = find_unheld(schema, excludes=EXCLUDES, escapes=escapes)
    assert all(each.keyword in part_at(schema, each.path) for each in unheld)
    grammar = walker.compile(as_grammar_schema(schema, excludes=EXCLUDES, escapes=escapes))
    if unheld:
        return
    choices = random.Random(seed)
    for budget in (0, 10, 30):
        call = walker.walk(grammar, choices, budget)
        if call is not None:
            assert not any(excluded in call for excluded in EXCLUDES)
            Draft202012Validator(schema).validate(json.loads(call))
