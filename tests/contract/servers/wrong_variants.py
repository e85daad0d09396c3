"""Ways to get a task wrong: variants of its solution, each with a different flaw. None may score as much."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from mcprl.goals import HasAll, HasNumber
from mcprl.records import Task, ToolCall

CHANNELS = ("general", "random", "research")
SYMBOL_ARGUMENTS = ("symbol", "ticker", "tickers", "query")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Variant:
    """What is wrong with it, and what it does: calls, then an answer."""

    flaw: str
    calls: tuple[ToolCall, ...]
    answer: str


def wrong_variants(task: Task, other: Task, symbols: Sequence[str]) -> list[Variant]:
    """All that apply to the task. `other` is a task with another answer, `symbols` are those of the whole world."""
    assert task.solution is not None
    assert other.solution is not None
    calls, answer = task.solution.calls, task.solution.answer
    variants = [
        Variant("right answer without any call", (), answer),
        Variant("calls without an answer", calls, ""),
        Variant("calls, and an answer of blanks", calls, " \n "),
        Variant("the question as the answer", calls, str(task.prompt[0]["content"])),
        Variant("a refusal as the answer", calls, "I am sorry, I cannot answer that."),
        Variant("the answer of another task", calls, other.solution.answer),
        Variant("the last call left out", calls[:-1], answer),
        Variant("the first call left out", calls[1:], answer),
        Variant("the first call made twice", (calls[0], *calls), answer),
        Variant("a tool that does not exist", (ToolCall(name="ask_oracle", arguments={}), *calls), answer),
        Variant("a call with bad arguments", (ToolCall(name=calls[0].name, arguments={"wrong": 1}), *calls), answer),
        *_wrong_answers(task, answer),
        *_wrong_arguments(task, symbols),
        *_wrong_posts(task),
    ]
    if len(calls) > 1 and not task.goal.in_any_order:
        variants.append(Variant("the calls in the wrong order", tuple(reversed(calls)), answer))
    return variants


def _wrong_answers(task: Task, answer: str) -> Iterator[Variant]:
    assert task.solution is not None
    calls, expected = task.solution.calls, task.goal.answer
    match expected:
        case HasNumber():
            value = expected.value
            unit = 2 * expected.tolerance
            yield Variant("a wrong number", calls, f"It is {value * 1.1 + 7:.2f}.")
            yield Variant("a number that is off by a digit", calls, f"It is {value + 1.5 * unit:.4f}.")
            if abs(value) > expected.tolerance:
                yield Variant("a number with the wrong sign", calls, f"It is {-value:.4f}.")
            guesses = ", ".join(f"{value + step * unit * 3:.2f}" for step in range(-5, 6))
            yield Variant("a list of guesses", calls, f"It is one of {guesses}.")
        case HasAll():
            yield Variant("a wrong name", calls, f"It is {expected.none_of[0]}.")
            guesses = ", ".join((*expected.none_of[:9], *expected.members))
            yield Variant("a list of guesses", calls, f"It is one of {guesses}.")
            yield Variant("two names, one of them right", calls, f"{answer} Or it is {expected.none_of[-1]}.")
        case _:
            raise AssertionError(f"{task.id} expects {expected}, for which no wrong answers are known")


def _wrong_arguments(task: Task, symbols: Sequence[str]) -> Iterator[Variant]:
    """Each argument that matters, wrong in turn."""
    assert task.solution is not None
    calls, answer = task.solution.calls, task.solution.answer
    for i, needed in enumerate(task.goal.calls):
        for name, value in needed.arguments.items():
            changed = {**calls[i].arguments, name: _another(name, value, symbols)}
            wrong = ToolCall(name=calls[i].name, arguments=changed)
            yield Variant(f"another {name} in call {i}", (*calls[:i], wrong, *calls[i + 1 :]), answer)


def _another(name: str, value: Any, symbols: Sequence[str]) -> Any:
    if name in SYMBOL_ARGUMENTS:
        return next(symbol for symbol in symbols if symbol != value)
    if name == "start_date":
        return (date.fromisoformat(value) - timedelta(days=21)).isoformat()
    if name == "end_date":
        return (date.fromisoformat(value) + timedelta(days=1)).isoformat()
    if name == "period":
        return "annual"
    if name == "analysis_type":
        return "summary"
    assert name == "context_key", name
    return f"{value}_2"


def _wrong_posts(task: Task) -> Iterator[Variant]:
    assert task.solution is not None
    calls, answer = task.solution.calls, task.solution.answer
    for i, call in enumerate(calls):
        if call.name != "send_slack_message":
            continue
        message, channel = call.arguments["message"], call.arguments["channel"]
        elsewhere = next(name for name in CHANNELS if name != channel)
        number = NUMBER.sub(lambda found: f"{float(found[0]) * 1.1 + 7:.2f}", message)
        flaws: Mapping[str, Mapping[str, Any]] = {
            "posted to another channel": {"channel": elsewhere},
            "a wrong number posted": {"message": number},
            "an empty post": {"message": " "},
            "a post without the number": {"message": NUMBER.sub("", message)},
            "a post with a list of guesses": {"message": f"{message} {number} 1.5 2.5 3.5 4.5 5.5 6.5"},
            "posted to a channel that does not exist": {"channel": "no-such-channel"},
        }
        for flaw, arguments in flaws.items():
            wrong = ToolCall(name=call.name, arguments={**call.arguments, **arguments})
            yield Variant(flaw, (*calls[:i], wrong, *calls[i + 1 :]), answer)
        tickers = re.findall(r"\b[A-Z]{3,5}\b", message)
        if tickers:
            unnamed = ToolCall(
                name=call.name, arguments={**call.arguments, "message": message.replace(tickers[0], "It")}
            )
            yield Variant("a post without the ticker", (*calls[:i], unnamed, *calls[i + 1 :]), answer)
        copied = ToolCall(name=call.name, arguments={**call.arguments, "channel": elsewhere})
        yield Variant("posted to a second channel too", (copied, *calls), answer)
        spoiled = ToolCall(name=call.name, arguments={**call.arguments, "message": number})
        yield Variant("a wrong post after the right one", (*calls, spoiled), answer)
