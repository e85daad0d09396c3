"""Random walks through grammars: what a policy that knows nothing could sample, steered so that calls get finished."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from xgrammar import TokenizerInfo

from mcprl.chat import Chat
from mcprl.chat.parsing import Thinking
from mcprl.chat.writing import syntax_of
from mcprl.grammar.masks import Grammars

__all__ = ["WALK_TOOLS", "Walker", "admissible_ids"]


def _tool(name: str, required: Sequence[str] = (), /, **properties: dict) -> dict:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": "", "parameters": schema}


_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name"],
}
WALK_TOOLS = (
    _tool("ping"),
    _tool(
        "find",
        ("query",),
        query={"type": "string"},
        limit={"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
        order={"type": "string", "enum": ["by name", "by age"]},
        exact={"type": "boolean"},
    ),
    _tool(
        "bounded",
        ("code", "day"),
        code={"type": "string", "minLength": 2, "maxLength": 5},
        day={"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        nick={"type": "string", "minLength": 1},
        initial={"type": "string", "maxLength": 1},
        nothing={"type": "string", "enum": ["", "-"], "maxLength": 0},
        unsaid={"type": "string", "maxLength": 0},
        share={"type": "number", "minimum": -1.5, "exclusiveMaximum": 2},
    ),
    _tool(
        "enrol",
        ("people", "by"),
        people={"type": "array", "items": _PERSON, "minItems": 1, "maxItems": 3},
        by={"anyOf": [{"type": "string"}, {"type": "null"}]},
        at={"type": ["string", "integer"]},
        tags={"type": "array", "items": {"enum": ["new", "old", 7]}},
        boss={"$ref": "#/$defs/boss"},
    ),
)
WALK_TOOLS[-1]["parameters"]["$defs"] = {"boss": {**_PERSON, "additionalProperties": False}}


class Walker:
    """Walks the grammars of one chat. Each step draws one of the admissible tokens at random.

    Now and then a walk spells a sign instead, in tokens drawn at random: at first that which ends thinking and that
    which begins a call, later those that end values and calls.
    """

    def __init__(self, chat: Chat, grammars: Grammars) -> None:
        self._chat = chat
        self._grammars = grammars
        self._texts = [bytes(text) for text in TokenizerInfo.from_huggingface(chat.tokenizer).decoded_vocab]
        self._by_first_byte: dict[int, list[int]] = {}
        for token, text in enumerate(self._texts):
            if text:
                self._by_first_byte.setdefault(text[0], []).append(token)
        syntax = syntax_of(chat)
        self._call = syntax.before_name.encode()
        ends = [syntax.fields.after, syntax.fields.before] if syntax.fields else ['"', "}", "]"]
        self._signs = [sign.encode() for sign in (*ends, '"', "}", "1", syntax.closing, "</think>") if sign]

    def walk(self, tag: str, seed: int, *, limit: int = 400) -> tuple[int, ...] | None:
        """The tokens of a turn that ended, or None if it was longer than `limit`."""
        draw = random.Random(seed)
        matcher = self._grammars.start(tag, self._chat.stop_token_ids)
        plan = self._plan(draw)
        talkative = draw.choice((0.1, 0.4, 0.7))
        ids: list[int] = []
        sign = b""
        while not matcher.ended and len(ids) < limit:
            admissible = admissible_ids(matcher.admissible())
            while not sign and plan:
                sign = plan.pop(0)
                if not sign:
                    break
            else:
                stops = [token for token in self._chat.stop_token_ids if token in admissible]
                if not sign and stops and draw.random() < 0.3:
                    ids.append(draw.choice(stops))
                    matcher.accept(ids[-1])
                    continue
                if not sign and draw.random() > (talkative if len(ids) < 80 else 0.05):
                    sign = draw.choice(self._signs)
            chosen = self._spelt(sign, admissible, draw)
            sign = sign[len(self._texts[chosen]) :] if chosen is not None else b""
            ids.append(draw.choice(admissible) if chosen is None else chosen)
            matcher.accept(ids[-1])
        return tuple(ids) if matcher.ended else None

    def _plan(self, draw: random.Random) -> list[bytes]:
        """What to spell at first; an empty text means a token drawn at random."""
        thinking = self._chat.thinking
        plan: list[bytes] = []
        if thinking is Thinking.OPEN or (thinking is Thinking.OPTIONAL and draw.random() < 0.7):
            plan += [b"<think>"] * (thinking is Thinking.OPTIONAL) + [b""] * draw.choice((0, 3, 12)) + [b"</think>"]
        if draw.random() < 0.8:
            plan += [b""] * draw.choice((0, 0, 0, 4)) + [self._call]
        return plan

    def _spelt(self, sign: bytes, admissible: list[int], draw: random.Random) -> int | None:
        """A token with which the sign may go on."""
        if not sign:
            return None
        allowed = set(admissible)
        spellings = [t for t in self._by_first_byte[sign[0]] if t in allowed and sign.startswith(self._texts[t])]
        if spellings and draw.random() < 0.5:  # Where a marker must be one token, spelling it out leads nowhere.
            return max(spellings, key=lambda token: len(self._texts[token]))
        return draw.choice(spellings) if spellings else None


def admissible_ids(row: torch.Tensor) -> list[int]:
    """The tokens whose bits are set in a row of a mask."""
    return np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little")).tolist()
