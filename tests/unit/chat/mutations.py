"""Endless damage to what models write. Tests and bench/parser_fuzz.py draw from the same stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from mcprl.chat.parsing import MAX_CALLS, Problem
from mcprl.records import ToolCall

__all__ = ["PIECES", "Fuzz", "assert_recordable"]

PIECES = (
    *("<tool_call>", "</tool_call>", "<tool_call>\n{", "}\n</tool_call>", "<think>", "</think>", "<|python_tag|>", ";"),
    *("{", "}", "[", "]", ",", ":", '"', "\\", '\\"', "\\u", "\\ud800", "\\udc00", '"name"', '"name": ""', '"name": 3'),
    *('"arguments"', '"parameters": {}', '"arguments": "{}"', '{"name": "a", "parameters": {', "null", "NaN", "1e999"),
    *("-Infinity", "-", "0x1", "1" * 5000, "[" * 2000, '{"a":' * 150, "true", "'", "//", "\n", "\t", " ", "\x00"),
    *(
        "\ud800",
        "\ufffd",
        "\u2028",
        "😀",
        "é",
        "<",
        "</",
        "<tool_call",
        "/tool_call>",
        "<function=a>",
        "<parameter=",
        ">",
    ),
    *(
        "</parameter>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "```json",
        "```",
        "x" * 300,
    ),
    *('<invoke name="', "</invoke>", "<｜DSML｜invoke", '" string="false">', "functions.", ":0", "call:", '<|"|>'),
)


class Fuzz:
    """A stream of damaged turns, the same for the same seed. Works on texts, and on lists of ids."""

    def __init__(self, seed: int, turns: Sequence[Any], pieces: Sequence[Any] = PIECES) -> None:
        self._random = Random(seed)
        self._turns = turns
        self._pieces = pieces
        self._empty = turns[0][:0]

    def next(self) -> Any:
        """A turn with one to five damages, or (one in eight) nothing but pieces."""
        random = self._random
        if random.random() < 0.125:
            made = self._empty
            for _ in range(random.randrange(24)):
                made = made + random.choice(self._pieces)  # not +=, which would change a list in place
            return made
        turn = random.choice(self._turns)
        for _ in range(random.randrange(1, 6)):
            turn = self._damaged(turn)
        return turn

    def _damaged(self, turn: Any) -> Any:
        random = self._random
        # `random()` times a length, because that is several times as fast as `randrange`.
        start = int(random.random() * (len(turn) + 1))
        stop = min(len(turn), start + int(random.random() ** 3 * 40))
        kind = int(random.random() * 6)
        if kind == 0:  # something is missing
            return turn[:start] + turn[stop:]
        if kind == 1:  # something is written twice
            return turn[:stop] + turn[start:]
        if kind == 2:  # the turn breaks off
            return turn[:start]
        if kind == 3:  # another turn continues this one
            other = random.choice(self._turns)
            return turn[:start] + other[int(random.random() * (len(other) + 1)) :]
        if kind == 4:  # something comes in between
            return turn[:start] + random.choice(self._pieces) + turn[start:]
        return turn[:start] + random.choice(self._pieces) + turn[stop:]


def assert_recordable(calls: Sequence[ToolCall]) -> None:
    """Each call can be sent and written down, and what is wrong with it is on the list of problems."""
    assert len(calls) <= MAX_CALLS + 1
    for call in calls:
        json.dumps([call.name, call.arguments, call.problem], ensure_ascii=False, allow_nan=False).encode()
        if call.problem is None:
            assert call.name
        else:
            assert call.arguments == {}
            Problem.of(call.problem)
