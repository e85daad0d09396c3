"""Rewards: the parts of what an episode achieved, each between 0 and 1, weighted, averaged, and clipped.

A part is there only where the goal checks it. Each sees the turns so far, so the reward of a turn is what the episode's
gained by it, and the turns' rewards add up to the episode's exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mcprl.config import RewardsConfig
from mcprl.episodes.checks import meets
from mcprl.episodes.matching import pair_in_any_order, pair_in_order
from mcprl.errors import BadValueError
from mcprl.goals import AnyText, ExpectedCall, Goal
from mcprl.records import Source, StopReason, Turn

__all__ = ["PARTS", "PENALTIES", "score", "succeeded", "weigh"]

PARTS: Final = ("answer", "state", "calls", "arguments", "efficiency", "rubric")
"""Parts between 0 and 1, which the weights average."""
PENALTIES: Final = ("invalid_call", "unanswered")
"""Parts of which a weight is taken off each time."""
_GOOD_GRADE: Final = 0.5

# Rewards are whole multiples of 1/_GRID: then differences and sums of them are exact, in whatever order.
_GRID: Final = 2**40
# More than there are calls in a goal: see _gain.
_PAIRS: Final = 2**20


def score(
    goal: Goal,
    turns: Sequence[Turn],
    answer: str | None,
    stop: StopReason | None,
    *,
    weights: RewardsConfig,
    state: float | None = None,
    grade: float | None = None,
) -> dict[str, float]:
    """How far `turns` came towards `goal`: a number for each part of the reward, before weights, and two counts.

    `answer` is the prose of a final turn, `stop` why the episode ended; both None while it goes on. `state` is the
    share of what must be true of the world, None where it is not known yet. `grade` is the judge's; None means that
    there is no judge, and no part `rubric`. The weights decide only which pairing of calls is the best.
    """
    # An injected failure is no call that was made: it counts neither for the policy nor against it.
    made = [pair for turn in turns for pair in zip(turn.calls, turn.observations, strict=True)]
    made = [(call, seen) for call, seen in made if seen.source is not Source.INJECTED]
    worked = [(seen.tool, seen.arguments or call.arguments) for call, seen in made if seen.worked]
    parts: dict[str, float] = {}
    if goal.state:
        parts["state"] = state or 0.0
    if goal.calls or goal.min_calls:
        parts |= _score_calls(goal, worked, len(made), weights)
    if goal.rubric is not None and grade is not None:
        parts["rubric"] = grade
    if goal.answer is not None:
        parts["answer"] = _score_answer(goal, answer, parts)
    parts["invalid_call"] = float(len(made) - len(worked))
    parts["unanswered"] = float(stop is not None and stop is not StopReason.ANSWERED)
    return {name: parts[name] for name in (*PARTS, *PENALTIES) if name in parts}


def weigh(parts: Mapping[str, float], weights: RewardsConfig) -> float:
    """Σ weight · part / Σ weight over the parts that are there, less the penalties, clipped."""
    present = [(float(getattr(weights, name)), parts[name]) for name in PARTS if name in parts]
    total = sum(weight for weight, _ in present)
    if not total > 0:
        checked = ", ".join(name for name in PARTS if name in parts)
        raise BadValueError(
            f"there is nothing to reward: the goal checks {checked or 'nothing'}"
            + (", and each of these has weight 0" if checked else ""),
            fix="give one of them a weight in rewards" if checked else "give the task an answer, calls or a state",
        )
    value = sum(weight * part for weight, part in present) / total
    value -= sum(float(getattr(weights, name)) * parts[name] for name in PENALTIES)
    lowest, highest = math.ceil(weights.clip_low * _GRID), math.floor(weights.clip_high * _GRID)
    return min(max(round(value * _GRID), lowest), highest) / _GRID


def succeeded(parts: Mapping[str, float]) -> bool:
    """Whether the task is solved: what came out is right where that is checked, else every needed call was made."""
    outcomes = {"answer": 1.0, "state": 1.0, "rubric": _GOOD_GRADE}
    checked = [parts[name] >= least for name, least in outcomes.items() if name in parts]
    return all(checked) if checked else parts.get("calls") == 1.0


def _score_answer(goal: Goal, answer: str | None, others: Mapping[str, float]) -> float:
    # An empty answer is none, also where its check asks only for what must not be said.
    if goal.answer is None or answer is None or not answer.strip() or not meets(goal.answer, answer):
        return 0.0
    if isinstance(goal.answer, AnyText):
        # Anybody can say something: it is worth no more than what was done.
        return min((others[name] for name in ("calls", "state", "rubric") if name in others), default=1.0)
    return 1.0


def _score_calls(
    goal: Goal, worked: Sequence[tuple[str, Mapping[str, Any]]], made: int, weights: RewardsConfig
) -> dict[str, float]:
    """The parts calls, arguments and efficiency, of the pairing of needed and made calls that is worth the most."""
    needed = max(len(goal.calls), goal.min_calls)
    enough = min(1.0, len(worked) / goal.min_calls) if goal.min_calls else 1.0
    thrift = min(1.0, needed / made) if made else 0.0
    right = [
        [_right_arguments(want, arguments) if tool == want.tool else None for tool, arguments in worked]
        for want in goal.calls
    ]
    wanted = sum(len(want.arguments) for want in goal.calls)
    # What one more pair, and one more right argument, adds to the weighted sum.
    a_pair = (weights.calls + weights.efficiency * thrift) * enough / max(1, len(goal.calls))
    an_argument = weights.arguments / max(1, wanted)
    gains = [[None if count is None else _gain(a_pair + an_argument * count) for count in row] for row in right]
    pairs = pair_in_any_order(gains) if goal.in_any_order else pair_in_order(gains)
    calls = enough * (len(pairs) / len(goal.calls) if goal.calls else 1.0)
    parts = {"calls": calls, "efficiency": calls * thrift}
    if wanted:
        parts["arguments"] = sum(right[i][j] or 0 for i, j in pairs) / wanted
    return parts


def _gain(value: float) -> int:
    # Among pairings worth the same, and where the weights are 0, the one with more pairs.
    return round(value * _GRID) * _PAIRS + 1


def _right_arguments(want: ExpectedCall, given: Mapping[str, Any]) -> int:
    return sum(name in given and _is_same(value, given[name]) for name, value in want.arguments.items())


def _is_same(wanted: object, given: object) -> bool:
    """Equal to a reasonable reader: case and outer spaces aside, 5 like 5.0; but true is not 1, nor is "5" 5."""
    if isinstance(wanted, str) and isinstance(given, str):
        return wanted.strip().casefold() == given.strip().casefold()
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(wanted, Mapping) and isinstance(given, Mapping):
        wanted, given = cast("Mapping[str, object]", wanted), cast("Mapping[str, object]", given)
        return wanted.keys() == given.keys() and all(_is_same(value, given[name]) for name, value in wanted.items())
    if isinstance(wanted, list | tuple) and isinstance(given, list | tuple):
        wanted, given = cast("Sequence[object]", wanted), cast("Sequence[object]", given)
        return len(wanted) == len(given) and all(map(_is_same, wanted, given))
    return wanted == given
