"""Rewards: small checks of what an episode did, each between 0 and 1, weighted and summed.

Each check sees the turns so far, so the reward of a turn is what the sum gained by it. The turns' rewards add up to
the episode's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcprl.config import RewardsConfig
from mcprl.records import ExpectedCall, Goal, StopReason, ToolCall, Turn

__all__ = ["score", "weigh"]


def score(goal: Goal, turns: Sequence[Turn], answer: str | None, stop: StopReason | None) -> dict[str, float]:
    """How far `turns` came towards `goal`: one number for each part of the reward, before weights.

    `answer` is the prose of a final turn, `stop` why the episode ended; both None while it goes on.
    """
    worked = [
        call for turn in turns for call, seen in zip(turn.calls, turn.observations, strict=True) if seen.fault is None
    ]
    calls, arguments = _match_calls(goal.calls, worked)
    failed = sum(seen.fault is not None for turn in turns for seen in turn.observations)
    return {
        "answer": float(answer is not None and _answers(goal.answer, answer)),
        "calls": calls,
        "arguments": arguments,
        "invalid_call": float(failed),
        "unanswered": float(stop is not None and stop is not StopReason.ANSWERED),
    }


def weigh(parts: Mapping[str, float], weights: RewardsConfig) -> float:
    """The sum of the parts by their weights; the last two are taken off."""
    return (
        weights.answer * parts["answer"]
        + weights.calls * parts["calls"]
        + weights.arguments * parts["arguments"]
        - weights.invalid_call * parts["invalid_call"]
        - weights.unanswered * parts["unanswered"]
    )


def _answers(expected: str | None, given: str) -> bool:
    """Whether the expected answer stands in the given one as a word of its own; without one, any answer will do."""
    if expected is None:
        return bool(given)
    # 5 is not the answer where 3.5 was given, nor 30 where 23:30 was; a full stop may follow.
    return re.search(rf"(?<![\w.:]){re.escape(expected)}(?![\w:]|\.\w)", given, re.IGNORECASE) is not None


def _match_calls(expected: Sequence[ExpectedCall], made: Sequence[ToolCall]) -> tuple[float, float]:
    """The shares of expected calls and of expected arguments found among the calls made, in order.

    The best alignment counts: best[j] holds (calls, arguments) for the expected calls so far and the first j made.
    """
    if not expected:
        return 1.0, 1.0
    best = [(0.0, 0.0)] * (len(made) + 1)
    for wanted in expected:
        row = [best[0]]
        for j, call in enumerate(made):
            options = [best[j + 1], row[j]]
            if call.name == wanted.tool:
                calls, arguments = best[j]
                options.append((calls + 1.0, arguments + _share_of_arguments(wanted.arguments, call.arguments)))
            row.append(max(options, key=sum))
        best = row
    calls, arguments = best[-1]
    return calls / len(expected), arguments / len(expected)


def _share_of_arguments(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    if not wanted:
        return 1.0
    return sum(name in given and given[name] == value for name, value in wanted.items()) / len(wanted)
