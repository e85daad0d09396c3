"""Random calls that a grammar admits, drawn uniformly token by token."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xgrammar as xgr
from jsonschema import Draft202012Validator
from transformers import AutoTokenizer

from mcprl.grammar.schema_parts import Unheld
from mcprl.grammar.schemas import rewrite

EXCLUDES = ("</", "<t", "<|", "\\ud", "\\uD")
_BEGIN, _END = "<tool_call>", "</tool_call>"
# Tokens that end a call soonest, outside of strings and inside one.
_CLOSING = (("</", "}", "]"), ('"',))
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_MAX_TOKENS = 200


class DeadEndError(Exception):
    """The grammar admitted a text that cannot be continued."""


class Walker:
    """Draws calls from grammars over one tokenizer."""

    def __init__(self, model: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model)
        self._info = xgr.TokenizerInfo.from_huggingface(tokenizer)
        self.vocab_size = self._info.vocab_size
        self._compiler = xgr.GrammarCompiler(self._info, cache_enabled=False)
        self._texts: list[bytes] = [bytes(text) for text in self._info.decoded_vocab]
        ids = {text: token for token, text in reversed(list(enumerate(self._texts)))}
        self._closing = [[ids[text.encode()] for text in texts] for texts in _CLOSING]
        self._single = np.array([len(text) == 1 for text in self._texts])

    def compile(self, schema: Mapping[str, Any], excludes: Sequence[str] = EXCLUDES) -> xgr.CompiledGrammar:
        """The grammar of one call with the schema of its arguments as it is."""
        content = {"type": "json_schema", "json_schema": schema, "excludes": list(excludes), "max_whitespace_cnt": 1}
        tag = {"type": "tag", "begin": _BEGIN, "content": content, "end": _END}
        return self._compiler.compile_structural_tag(json.dumps({"type": "structural_tag", "format": tag}))

    def admits(self, grammar: xgr.CompiledGrammar, text: str) -> bool:
        matcher = xgr.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return matcher.accept_string(_BEGIN + text + _END) and matcher.is_terminated()

    def walk(self, grammar: xgr.CompiledGrammar, choices: random.Random, budget: int = 40) -> str | None:
        """The arguments of one call. After `budget` tokens it is closed as soon as the grammar allows.

        None if that took too long: a pattern may require a word that random choices do not find.
        """
        matcher = xgr.GrammarMatcher(grammar, terminate_without_stop_token=True)
        assert matcher.accept_string(_BEGIN)
        row = xgr.allocate_token_bitmask(1, self.vocab_size)
        text = b""
        for step in range(_MAX_TOKENS):
            matcher.fill_next_token_bitmask(row)
            bits = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: self.vocab_size]
            admitted = np.flatnonzero(bits)
            if not len(admitted):
                raise DeadEndError(f"nothing may follow {text.decode(errors='replace')!r}")
            closing = self._closing[b'"' in _STRING.sub(b"", text)] if step >= budget else None
            token = self._choose(bits, admitted, closing, choices)
            assert matcher.accept_token(token)
            text += self._texts[token]
            if matcher.is_terminated():
                # In a string without a pattern, xgrammar admits the bytes of half a surrogate pair.
                return text.decode(errors="replace").removesuffix(_END)
        return None

    def _choose(self, bits: np.ndarray, admitted: np.ndarray, closing: list[int] | None, choices: random.Random) -> int:
        for token in closing or ():
            if bits[token]:
                return token
        # Most tokens are long, and are words inside strings: half of the time, draw a single character.
        single = admitted[self._single[admitted]]
        pool = single if len(single) and (closing is not None or choices.random() < 0.5) else admitted
        return int(pool[choices.randrange(len(pool))])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result for a schema: the reported keywords, or the compile time and the number of calls drawn.

    Verdict(unheld=(), compile_s=0.04, num_calls=3)
    """

    unheld: tuple[Unheld, ...]
    compile_s: float = 0.0
    num_calls: int = 0


def find_unheld(schema: Mapping[str, Any], **options: Any) -> tuple[Unheld, ...]:
    return rewrite(schema, **options)[1]


def as_grammar_schema(schema: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return rewrite(schema, **options)[0]


def held_or_named(walker: Walker, schema: Mapping[str, Any], seed: int, num_walks: int = 3) -> Verdict:
    """Assert that every call drawn from the schema's grammar is valid, or that a keyword of the schema is reported."""
    written, unheld = rewrite(schema, excludes=EXCLUDES, escapes=True)
    if unheld:
        assert all(each.keyword in part_at(schema, each.path) and each.why for each in unheld)
        return Verdict(unheld=unheld)
    before_s = time.process_time()  # of all threads of this process
    grammar = walker.compile(written)
    compile_s = time.process_time() - before_s
    choices = random.Random(seed)
    calls = [walker.walk(grammar, choices, budget=15 * number) for number in range(num_walks)]
    drawn = [json.loads(call) for call in calls if call is not None]
    for call in drawn:
        Draft202012Validator(schema).validate(call)
    return Verdict(unheld=(), compile_s=compile_s, num_calls=len(drawn))


def part_at(schema: Any, path: str) -> Any:
    """The subschema at a path such as "/properties/tags"."""
    for step in path.split("/")[1:]:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step.replace("~1", "/").replace("~0", "~")]
    return schema


@cache
def walker_of(model: Path) -> Walker:
    return Walker(model)
