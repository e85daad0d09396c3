"""Rewards: the parts of what an episode achieved, each between 0 and 1, weighted, averaged, and clipped.

A part is there only where the goal checks it. Each sees the turns so far, so the reward of a turn is what the episode's
gained by it, and the turns' rewards add up to the episode's exactly.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from mcprl.config import RewardsConfig
from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import AnyText, Contains, Exactly, ExpectedCall, ExpectedText, Goal, HasAll, HasNumber, Matches
from mcprl.records import Source, StopReason, Task, Turn
from mcprl.schemas import is_found, why_no_pattern

__all__ = [
    "PARTS",
    "PENALTIES",
    "meets",
    "numbers_in",
    "pair_in_any_order",
    "pair_in_order",
    "require_judge",
    "require_scorable",
    "score",
    "succeeded",
    "weigh",
    "why_unusable",
]


_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"[0-9]{1,2}(?:st|nd|rd|th)?"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_DATES_AND_TIMES = re.compile(
    rf"(?<![\w.:])(?:[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}(?:Z|[-+−][0-9]{{2}}:?[0-9]{{2}})?)?"
    rf"|{_CLOCK}|{_MONTH}\s{_DAY},?\s[0-9]{{4}}|{_DAY}\s{_MONTH},?\s[0-9]{{4}})(?![\w:]|\.[0-9])",
    re.IGNORECASE,
)
# 1,234.5 or 1234.5 or .5 with what may stand around it, but not as part of a word, nor of something like 1.2.3.
_NUMBER = re.compile(
    r"(?<!\w)(?<![0-9]\.)(?:(?<![%)\]])(?P<sign>[-+−]))?"
    r"(?:(?:[A-Z]{0,2}[$€£¥₹]|USD|EUR|GBP|JPY|CHF)\s?(?P<inner_sign>[-+−])?)?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3}){1,99}+(?![0-9])(?:\.[0-9]{1,300}+)?|[0-9]{1,300}+(?:\.[0-9]{1,300}+)?"
    r"|\.[0-9]{1,300}+)(?P<exponent>[eE][-+−]?[0-9]{1,3}(?![0-9]))?"
    r"(?:(?P<letter>[kKmMbBtT])(?!\w)|[ \u00a0\u202f](?P<apart>[KMBT])(?![\w&-])"
    r"|[ \u00a0\u202f-]?(?P<word>(?i:thousand|million|billion|trillion|mn|mln|bn|bln|tn)s?)(?!\w)"
    r"|(?i:x|bps?|st|nd|rd|th|USD|EUR|GBP|JPY|CHF)(?!\w))?"
    r"(?!\w|\.[0-9])"
)
_POWERS = {"t": 12, "b": 9, "m": 6, "k": 3}
_MINUS = "-−"


def meets(expected: ExpectedText, text: str) -> bool:
    """Whether the text is what was expected.

    >>> meets(HasNumber(value=213.88, tolerance=0.005), "VLKN closed at $213.88 on 2025-11-14.")
    True
    """
    match expected:
        case AnyText():
            return bool(text.strip())
        case Contains():
            return _stands_in(expected.text, text)
        case Exactly():
            return text.strip().casefold() == expected.text.strip().casefold()
        case HasNumber():
            return _has_number(expected, text)
        case HasAll():
            has_all = all(_stands_in(member, text) for member in expected.members)
            return has_all and not any(_stands_in(other, text) for other in expected.none_of)
        case Matches():
            return is_found(expected.pattern, text)


def why_unusable(expected: ExpectedText) -> str | None:
    """Why nothing, or everything, would meet this expectation; None where it can be judged."""
    match expected:
        case Contains() | Exactly():
            return None if expected.text.strip() else "an empty text is expected"
        case HasNumber():
            if not (math.isfinite(expected.value) and math.isfinite(expected.tolerance) and expected.tolerance >= 0):
                return "a number and its tolerance must be finite, the tolerance 0 or more"
            return "at_most must be 1 or more" if expected.at_most is not None and expected.at_most < 1 else None
        case HasAll():
            words = (*expected.members, *expected.none_of)
            return None if words and all(word.strip() for word in words) else "an empty text is expected"
        case Matches():
            return why_no_pattern(expected.pattern)
        case AnyText():
            return None


def numbers_in(text: str) -> tuple[Decimal, ...]:
    """Every number of a text, in order, as it was written: signs, separators and multipliers understood.

    Dates and clock times are no numbers, nor are the digits of words such as Q3 or of versions such as 1.2.3. A
    percentage counts as the number before its sign.

    >>> [str(number) for number in numbers_in("On 2025-11-14 at 16:00 it fell −1.5% to $1,234.50; revenue: 2 million")]
    ['-1.5', '1234.50', '2E+6']
    """
    return tuple(_value(found) for found in _NUMBER.finditer(_DATES_AND_TIMES.sub(" ", text)))


def _value(found: re.Match[str]) -> Decimal:
    exponent = (found["exponent"] or "").replace("−", "-")
    number = Decimal(found["digits"].replace(",", "") + exponent)
    unit = (found["letter"] or found["apart"] or found["word"] or "").lower()
    # "thousand" and "tn" begin alike.
    power = 3 if unit.startswith("thousand") else _POWERS[unit[0]] if unit else 0
    is_negative = ((found["sign"] or "+") in _MINUS) != ((found["inner_sign"] or "+") in _MINUS)
    return number.scaleb(power) * (-1 if is_negative else 1)


def _has_number(expected: HasNumber, text: str) -> bool:
    numbers = set(numbers_in(text))
    if expected.at_most is not None and len(numbers) > expected.at_most:
        return False
    # In decimals, as all of these numbers were written: 213.885 is within 0.005 of 213.88.
    value, tolerance = Decimal(str(expected.value)), Decimal(str(expected.tolerance))
    return any(abs(number - value) <= tolerance for number in numbers)


def _stands_in(words: str, text: str) -> bool:
    return _words(words).search(text) is not None


@lru_cache(maxsize=4096)
def _words(words: str) -> re.Pattern[str]:
    """These words where they stand alone: not 5 in 3.5, nor 30 in 23:30; a full stop or a colon may follow."""
    escaped = r"\s+".join(re.escape(word) for word in words.split())
    return re.compile(rf"(?<![\w.])(?<![0-9]:){escaped}(?!\w|\.\w|:[0-9])", re.IGNORECASE)


Gains = Sequence[Sequence[int | None]]


def pair_in_order(gains: Gains) -> list[tuple[int, int]]:
    """The best pairs (i, j) of which both members rise together.

    most[i][j] is the best sum for the first i needed and the first j made calls; the pairs are read off backwards.
    """
    made = len(gains[0]) if gains else 0
    most = [[0] * (made + 1) for _ in range(len(gains) + 1)]
    for i, row in enumerate(gains):
        for j, gain in enumerate(row):
            skipped = max(most[i][j + 1], most[i + 1][j])
            most[i + 1][j + 1] = skipped if gain is None else max(skipped, most[i][j] + gain)
    pairs: list[tuple[int, int]] = []
    i, j = len(gains), made
    while i and j:
        if most[i][j] == most[i - 1][j]:
            i -= 1
        elif most[i][j] == most[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def pair_in_any_order(gains: Gains) -> list[tuple[int, int]]:
    """The best pairs (i, j) in which no call stands twice: the assignment problem, by shortest augmenting paths.

    Each needed call also has a column of its own that brings nothing, so that it may stay unpaired. Potentials u and v
    keep every reduced cost at 0 or above, as in the Hungarian method.
    """
    needed, made = len(gains), len(gains[0]) if gains else 0
    # Costs are negated gains; None means that the pair does not exist, and its own empty column is always the better.
    forbidden = 1 + sum(max((gain or 0 for gain in row), default=0) for row in gains)
    costs = [
        [forbidden if gain is None else -gain for gain in row]
        + [0 if column == i else forbidden for column in range(needed)]
        for i, row in enumerate(gains)
    ]
    columns = made + needed
    u, v = [0] * needed, [0] * columns
    row_of: list[int | None] = [None] * columns
    for row in range(needed):
        _assign(row, costs, u, v, row_of)
    return sorted((i, j) for j, i in enumerate(row_of[:made]) if i is not None)


def _assign(row: int, costs: Sequence[Sequence[int]], u: list[int], v: list[int], row_of: list[int | None]) -> None:
    """Give `row` a column, moving rows that have one along the cheapest path to a free column."""
    columns = len(v)
    # What the cheapest path to each column costs, and the column before it on that path (−1: it starts at `row`).
    distance: list[int | None] = [None] * columns
    before = [-1] * columns
    visited: list[int] = []
    open_columns = set(range(columns))
    current, current_row, base = -1, row, 0
    while True:
        for j in open_columns:
            reached = base + costs[current_row][j] - u[current_row] - v[j]
            known = distance[j]
            if known is None or reached < known:
                distance[j], before[j] = reached, current
        current = min(open_columns, key=lambda j: (distance[j], j))
        open_columns.discard(current)
        base = distance[current] or 0
        next_row = row_of[current]
        if next_row is None:
            break
        visited.append(current)
        current_row = next_row
    u[row] += base
    for j in visited:
        slack = base - (distance[j] or 0)
        owner = row_of[j]
        assert owner is not None
        u[owner] += slack
        v[j] -= slack
    while current != -1:
        previous = before[current]
        row_of[current] = row if previous == -1 else row_of[previous]
        current = previous


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
    return round(min(max(value, -1.0), 1.0) * _GRID) / _GRID


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


_logger = logging.getLogger(__name__)


def require_scorable(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Stop here where a task's goal cannot be judged, or where nothing that it checks has a weight."""
    for task in tasks:
        for expected in _expected_texts(task.goal):
            problem = why_unusable(expected)
            if problem is not None:
                raise TaskFileError(f"task {task.id}: {problem}", fix="correct the task's goal")
    require_judge(tasks, rewards)
    for task in tasks:
        grade = 0.0 if rewards.judge is not None else None
        try:
            weigh(score(task.goal, (), None, None, weights=rewards, grade=grade), rewards)
        except BadValueError as error:
            raise BadValueError(f"task {task.id}: {error.what}", fix=error.fix) from error


def require_judge(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Without a judge a rubric is not graded: warn, and stop where it is all that a task checks."""
    if rewards.judge is not None:
        return
    with_rubric = [task for task in tasks if task.goal.rubric is not None]
    for task in with_rubric:
        goal = task.goal
        if goal.answer is None and not (goal.calls or goal.min_calls or goal.state):
            raise BadValueError(
                f"task {task.id} is checked by its rubric alone, and rewards.judge is not set",
                fix="set rewards.judge to an endpoint that grades, or give the task an answer, calls or a state",
            )
    if with_rubric:
        _logger.warning(
            "%d of %d tasks have a rubric (%s first), but rewards.judge is not set: it is left out of their rewards",
            len(with_rubric),
            len(tasks),
            with_rubric[0].id,
        )


def _expected_texts(goal: Goal) -> Iterator[ExpectedText]:
    if goal.answer is not None:
        yield goal.answer
    for state in goal.state:
        yield from state.texts
