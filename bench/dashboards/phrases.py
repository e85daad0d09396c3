"""The texts that generated episodes are put together from, each with its tokens.

A phrase is turned into tokens once; an episode is a row of phrases. So a hundred thousand episodes are made in seconds,
and the tokens of each still are those of its text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

__all__ = ["TOOLS", "Phrase", "Scene", "digit_ids", "make_scenes"]

TOOLS = {
    "find_person": "directory",
    "get_current_time": "time",
    "convert_time": "time",
    "get_quote": "market",
    "search_news": "market",
    "run_python": "python",
}
_PEOPLE = ("Ana", "Bola", "Chidi", "Dana", "Emre", "Fatima", "Goran", "Hiro", "Ines", "Jun", "Zoë", "Şirin")
_PLACES = ("America/Lima", "Africa/Lagos", "Asia/Tokyo", "Europe/Berlin", "Asia/Dubai", "America/Denver")
_TICKERS = ("ACME", "BOLT", "CRUX", "DELTA", "EMBER", "FLUX", "GRAIN", "HELIX")
_OFFER = "You may call these tools:\n" + "\n".join(
    json.dumps({"name": tool, "server": server, "parameters": {"type": "object"}}) for tool, server in TOOLS.items()
)
_STORY = (
    "the office calendar says that the meeting moved and the note below explains why the earlier figure was wrong "
    "because the exchange closed early on that day and the feed repeats the last price it knew about until it opens "
    "again so compare the volume with the average of the week before trusting a single quote from a thin market"
)
_WORDS = _STORY.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A text and its tokens. Phrase(text="Hi", ids=array([13048]))"""

    text: str
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """All that can be said in the episodes of one task: its prompt, ways to think, calls with results, answers.

    `calls[i]` is what the policy writes for tools[i], `results[i]` what it gets; the last of both is a mistake.
    """

    task_id: str
    question: str
    prompt: Phrase
    thoughts: tuple[Phrase, ...]
    tools: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]
    calls: tuple[Phrase, ...]
    results: tuple[Phrase, ...]
    right: Phrase
    wrong: Phrase


def make_scenes(tokenizer_file: Path, count: int, seed: int) -> list[Scene]:
    """So many tasks and what is said in them, the same for the same seed."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    draw = random.Random(seed)

    def phrase(text: str) -> Phrase:
        return Phrase(text=text, ids=np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64))

    return [_scene(number, draw, phrase) for number in range(count)]


def digit_ids(tokenizer_file: Path) -> list[int]:
    """The tokens of the ten digits, which these tokenizers never join: for numbers that no phrase foresees."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return [tokenizer.encode(str(digit), add_special_tokens=False).ids[0] for digit in range(10)]


def _scene(number: int, draw: random.Random, phrase: Any) -> Scene:
    person, place, ticker = draw.choice(_PEOPLE), draw.choice(_PLACES), draw.choice(_TICKERS)
    question = f"When it is {draw.randrange(24):02d}:30 in {place}, what does {ticker} cost, and who is {person}?"
    tools = tuple(draw.sample(sorted(TOOLS), 3))
    arguments: list[dict[str, Any]] = [_arguments(tool, person, place, ticker) for tool in tools]
    arguments.append({"query": person, "limit": "many"})
    results = [_result(tool, draw) for tool in tools]
    results.append(f"Error: 'limit' must be a number, got 'many' ({draw.randrange(10**6)})")
    names = (*tools, tools[0])
    calls = [
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}\n</tool_call>"
        for name, given in zip(names, arguments, strict=True)
    ]
    return Scene(
        task_id=f"market-{number:04d}",
        question=question,
        prompt=phrase(f"<|im_start|>system\n{_OFFER}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"),
        thoughts=tuple(phrase(f"I should look this up: {_prose(draw, 12, 40)}.\n") for _ in range(6)),
        tools=names,
        arguments=tuple(arguments),
        calls=tuple(phrase(text) for text in calls),
        results=tuple(phrase(f"\n<tool_response>\n{text}\n</tool_response>\n") for text in results),
        right=phrase(f"{person} is in {place}; {ticker} costs {draw.uniform(5, 900):.2f}."),
        wrong=phrase(f"I could not find {ticker}: {_prose(draw, 5, 20)}."),
    )


def _arguments(tool: str, person: str, place: str, ticker: str) -> dict[str, Any]:
    return {
        "find_person": {"name": person},
        "get_current_time": {"timezone": place},
        "convert_time": {"time": "09:30", "source": place, "target": "Asia/Tokyo"},
        "get_quote": {"symbol": ticker, "fields": ["price", "volume"]},
        "search_news": {"query": f"{ticker} {person}", "limit": 5},
        "run_python": {"code": f"print(sum(ord(c) for c in {person!r}))"},
    }[tool]


def _result(tool: str, draw: random.Random) -> str:
    if tool == "search_news":
        return "\n".join(f"{draw.randrange(10**5)}: {_prose(draw, 15, 45)}" for _ in range(3))
    if tool == "get_quote":
        return json.dumps({"price": round(draw.uniform(5, 900), 2), "volume": draw.randrange(10**7)})
    return _prose(draw, 8, 30)


def _prose(draw: random.Random, fewest: int, most: int) -> str:
    return " ".join(draw.choices(_WORDS, k=draw.randint(fewest, most)))
