"""Rewards: the weighted mean of parts between 0 and 1, minus penalties, clipped.

A part exists only if the goal checks it. `score` computes the parts from the turns so far, and `weigh` combines them
into one number. The reward of a turn is the change in that number, so the turn rewards add up exactly to the episode's.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, cast

from mcprl.bounds import is_found, why_no_pattern
from mcprl.config import PENALTIES, RewardsConfig
from mcprl.errors import BadValueError, TaskFileError
from mcprl.goals import (
    AnyText,
    Contains,
    Exactly,
    ExpectedCall,
    ExpectedText,
    ExpectedWrite,
    Goal,
    HasAll,
    HasDate,
    HasFields,
    HasNumber,
    Matches,
    MeetsSome,
)
from mcprl.records import StopReason, Task, Turn

__all__ = [
    "PARTS",
    "PENALTIES",
    "meets",
    "numbers_in",
    "pair_in_any_order",
    "pair_in_order",
    "pair_in_sets",
    "require_judge",
    "require_scorable",
    "score",
    "succeeded",
    "weigh",
    "why_unusable",
]

_logger = logging.getLogger(__name__)

PARTS: Final = ("answer", "state", "calls", "arguments", "efficiency", "rubric", "check")
"""Parts between 0 and 1. The reward is their weighted mean."""
_GOOD_GRADE: Final = 0.5

# Rewards are multiples of 1/_GRID, so that their sums and differences are exact in any order.
_GRID: Final = 2**40
# Larger than the number of calls in a goal. Used in _gain.
_PAIRS: Final = 2**20


def score(
    goal: Goal,
    turns: Sequence[Turn],
    answer: str | None,
    stop: StopReason | None,
    *,
    weights: RewardsConfig,
    state: float | None = None,
    graded: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the unweighted reward parts of `turns`, and the counts of penalties.

    `answer` is the text of the final turn and `stop` the reason why the episode ended; both are None before that.
    `state` is the fraction of the goal's `state` that was reached, or None if it is not yet known. `graded` holds the
    parts from the judge (`rubric`), the task's own check and reward functions. `weights` only decide which pairing of
    calls is best.
    """
    graded = graded or {}
    # An injected failure counts neither for nor against the policy, nor does a call that did not reach mcprl.
    made = [pair for turn in turns for pair in zip(turn.calls, turn.observations, strict=True)]
    made = [(call, seen) for call, seen in made if seen.worked or seen.fault is not None]
    worked = [(seen.tool, seen.arguments or call.arguments) for call, seen in made if seen.worked]
    parts: dict[str, float] = {}
    if goal.state or goal.writes:
        reached = (state or 0.0) * len(goal.state) + sum(_is_written(write, worked) for write in goal.writes)
        parts["state"] = reached / (len(goal.state) + len(goal.writes))
    if goal.calls or goal.min_calls:
        parts |= _score_calls(goal, worked, len(made), weights)
    wanted = {"rubric": goal.rubric, "check": goal.check}
    parts |= {name: graded[name] for name, field in wanted.items() if field is not None and name in graded}
    if goal.answer is not None:
        parts["answer"] = _score_answer(goal, answer, parts)
    parts["invalid_call"] = float(len(made) - len(worked))
    parts["unanswered"] = float(stop is not None and stop is not StopReason.ANSWERED)
    own = {name: value for name, value in graded.items() if name not in PARTS}
    return {name: parts[name] for name in (*PARTS, *PENALTIES) if name in parts} | own


def weigh(parts: Mapping[str, float], weights: RewardsConfig) -> float:
    """Return Σ weight · part / Σ weight over the parts present, minus Σ weight · penalty, clipped."""
    present = [(weights.weight_of(name), value) for name, value in parts.items() if name not in PENALTIES]
    total = sum(weight for weight, _ in present)
    if not total > 0:
        checked = ", ".join(name for name in parts if name not in PENALTIES)
        raise BadValueError(
            "an episode cannot earn a reward: the goal checks "
            + (f"only parts with weight 0 ({checked})" if checked else "nothing"),
            fix="set the weight of one of these parts in rewards"
            if checked
            else "give the task 'answer', 'calls' or 'state'",
        )
    value = sum(weight * part for weight, part in present) / total
    value -= weights.penalty * sum(parts[name] for name in PENALTIES)
    return round(min(max(value, -1.0), 1.0) * _GRID) / _GRID


def succeeded(parts: Mapping[str, float]) -> bool:
    """Return whether the task is solved.

    If the goal checks outcomes (answer, state, check, rubric), they decide; else the calls; else the reward functions.
    """
    outcomes = {"answer": 1.0, "state": 1.0, "check": 1.0, "rubric": _GOOD_GRADE}
    checked = [parts[name] >= least for name, least in outcomes.items() if name in parts]
    if checked or "calls" in parts:
        return all(checked) if checked else parts["calls"] == 1.0
    own = [value for name, value in parts.items() if name not in PENALTIES]
    return bool(own) and all(value >= _GOOD_GRADE for value in own)


def _score_answer(goal: Goal, answer: str | None, others: Mapping[str, float]) -> float:
    # An empty answer never counts, even if the goal only lists words that must not appear.
    if goal.answer is None or answer is None or not answer.strip() or not meets(goal.answer, answer):
        return 0.0
    if isinstance(goal.answer, AnyText):
        # Any text is accepted, so the answer scores no higher than the other parts.
        return min((others[name] for name in ("calls", "state", "rubric", "check") if name in others), default=1.0)
    return 1.0


def _is_written(want: ExpectedWrite, worked: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    return any(
        tool == want.tool
        and all(name in given and _is_same(value, given[name]) for name, value in want.arguments.items())
        and all(meets(text, str(given.get(name, ""))) for name, texts in want.texts.items() for text in texts)
        for tool, given in worked
    )


def _score_calls(
    goal: Goal, worked: Sequence[tuple[str, Mapping[str, Any]]], made: int, weights: RewardsConfig
) -> dict[str, float]:
    """Compute the parts calls, arguments and efficiency for the best pairing of expected and actual calls."""
    needed = max(len(goal.calls), goal.min_calls)
    enough = min(1.0, len(worked) / goal.min_calls) if goal.min_calls else 1.0
    thrift = min(1.0, needed / made) if made else 0.0
    right = [
        [_right_arguments(want, arguments) if tool == want.tool else None for tool, arguments in worked]
        for want in goal.calls
    ]
    wanted = sum(len(want.arguments) for want in goal.calls)
    # The increase of the weighted sum per additional pair, and per additional correct argument.
    per_pair = (weights.calls + weights.efficiency * thrift) * enough / max(1, len(goal.calls))
    per_argument = weights.arguments / max(1, wanted)
    gains = [[None if count is None else _gain(per_pair + per_argument * count) for count in row] for row in right]
    if goal.call_sets:
        pairs = pair_in_sets(gains, goal.call_sets)
    else:
        pairs = pair_in_any_order(gains) if goal.in_any_order else pair_in_order(gains)
    calls = enough * (len(pairs) / len(goal.calls) if goal.calls else 1.0)
    parts = {"calls": calls, "efficiency": calls * thrift}
    if wanted:
        parts["arguments"] = sum(right[i][j] or 0 for i, j in pairs) / wanted
    return parts


def _gain(value: float) -> int:
    # Among pairings of equal value, prefer the one with more pairs, even if all weights are 0.
    return round(value * _GRID) * _PAIRS + 1


def _right_arguments(want: ExpectedCall, given: Mapping[str, Any]) -> int:
    return sum(name in given and _is_same(value, given[name]) for name, value in want.arguments.items())


def _is_same(wanted: object, given: object) -> bool:
    """Compare two values. Case and outer spaces are ignored; 5 equals 5.0, but true is not 1, and "5" is not 5."""
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


Gains = Sequence[Sequence[int | None]]


def pair_in_order(gains: Gains) -> list[tuple[int, int]]:
    """Return the pairs (i, j) with the largest total gain, both indices increasing.

    most[i][j] is the best total for the first i expected and the first j actual calls. The pairs are read off
    backwards.
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
    """Return the pairs (i, j) with the largest total gain, using each call at most once: the assignment problem.

    Rows (expected calls) are added one by one. A new row takes a free column, or the column of another row, which then
    takes a different column. Bellman-Ford finds the cheapest such chain, which keeps the assignment optimal. Each row
    also has a column with gain 0, so that it may stay unpaired.
    """
    needed, made = len(gains), len(gains[0]) if gains else 0
    # Costs are negated gains. A forbidden pair (None) always costs more than the column with gain 0.
    forbidden = 1 + sum(max((gain or 0 for gain in row), default=0) for row in gains)
    costs = [
        [forbidden if gain is None else -gain for gain in row]
        + [0 if column == i else forbidden for column in range(needed)]
        for i, row in enumerate(gains)
    ]
    column_of: dict[int, int] = {}
    for new in range(needed):
        owner_of = {column: row for row, column in column_of.items()}
        distance, taker_of = {new: 0}, dict[int, int]()  # keyed by the row that is left without a column
        changed = True
        while changed:
            changed = False
            for row, column in itertools.product(list(distance), owner_of):
                owner = owner_of[column]
                reached = distance[row] + costs[row][column] - costs[owner][column]
                if owner not in distance or reached < distance[owner]:
                    distance[owner], taker_of[owner], changed = reached, row, True
        free = [(row, column) for row in distance for column in range(made + needed) if column not in owner_of]
        row, column = min(free, key=lambda pair: distance[pair[0]] + costs[pair[0]][pair[1]])
        while row != new:
            column_of[row], column = column, column_of[row]
            row = taker_of[row]
        column_of[new] = column
    return sorted((row, column) for row, column in column_of.items() if column < made)


def pair_in_sets(gains: Gains, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs (i, j) with the largest total gain: sets in order, the calls of a set in any order.

    A state is the current set and which of its expected calls are paired. For each state, `best` has the largest gain
    from the actual calls so far, and its pairs. Task files have sets of at most 6 calls, so there are few states.
    """
    starts = [0, *itertools.accumulate(sizes)]
    best: dict[tuple[int, int], tuple[int, tuple[tuple[int, int], ...]]] = {(0, 0): (0, ())}
    for j in range(len(gains[0]) if gains else 0):
        for (current, paired), (total, pairs) in list(best.items()):
            for later in range(current, len(sizes)):
                taken = paired if later == current else 0
                for place in range(sizes[later]):
                    gain = gains[starts[later] + place][j]
                    if gain is None or taken >> place & 1:
                        continue
                    state = later, taken | 1 << place
                    if state not in best or best[state][0] < total + gain:
                        best[state] = total + gain, (*pairs, (starts[later] + place, j))
    return list(max(best.values(), key=lambda found: found[0])[1])


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
# Matches 1,234.5 or 1234.5 or .5, with sign, currency and unit, but not inside a word or in something like 1.2.3.
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
    """Return True if a text meets an expectation.

    >>> meets(HasNumber(value=213.88, tolerance=0.005), "VLKN closed at $213.88 on 2025-11-14.")
    True
    """
    match expected:
        case AnyText():
            return bool(text.strip())
        case Contains():
            return _contains_words(text, expected.text)
        case Exactly():
            return text.strip().casefold() == expected.text.strip().casefold()
        case HasNumber():
            return _has_number(expected, text)
        case HasDate():
            dates = set(_dates_in(text))
            near = any(abs(day - date.fromisoformat(expected.date)).days <= expected.tolerance_days for day in dates)
            return near and (expected.at_most is None or len(dates) <= expected.at_most)
        case HasFields():
            found = _object_in(text)
            return found is not None and all(_field_meets(found, name, each) for name, each in expected.fields.items())
        case HasAll():
            has_all = all(_contains_words(text, member) for member in expected.members)
            return has_all and not any(_contains_words(text, other) for other in expected.none_of)
        case Matches():
            return is_found(expected.pattern, text)
        case MeetsSome():
            needed = len(expected.of) if expected.at_least is None else expected.at_least
            return sum(meets(member, text) for member in expected.of) >= needed


def why_unusable(expected: ExpectedText) -> str | None:
    """Return why an expectation cannot be checked, or None if it can."""
    match expected:
        case Contains() | Exactly():
            return None if expected.text.strip() else "the expected text is empty"
        case HasNumber():
            if not (math.isfinite(expected.value) and math.isfinite(expected.tolerance) and expected.tolerance >= 0):
                return "a number and its tolerance must be finite, and the tolerance at least 0"
            return "at_most must be at least 1" if expected.at_most is not None and expected.at_most < 1 else None
        case HasAll():
            words = (*expected.members, *expected.none_of)
            return None if words and all(word.strip() for word in words) else "the expected text is empty"
        case Matches():
            return why_no_pattern(expected.pattern)
        case HasDate():
            if expected.tolerance_days < 0:
                return "tolerance_days must be at least 0"
            is_date = _ISO_DATE.fullmatch(expected.date) is not None and _day(expected.date) is not None
            return None if is_date else f"{expected.date!r} is not a date like 2025-11-14"
        case HasFields():
            return next(filter(None, map(why_unusable, expected.fields.values())), None)
        case MeetsSome():
            if not 1 <= (len(expected.of) if expected.at_least is None else expected.at_least) <= len(expected.of):
                return "at_least must be between 1 and the number of expectations"
            return next(filter(None, map(why_unusable, expected.of)), None)
        case AnyText():
            return None


def numbers_in(text: str) -> tuple[Decimal, ...]:
    """Return the numbers in a text, in order. Handles signs, thousands separators and multipliers.

    Dates, times, digits inside words such as Q3, and versions such as 1.2.3 are not numbers. 5% counts as 5.

    >>> [str(number) for number in numbers_in("On 2025-11-14 at 16:00 it fell −1.5% to $1,234.50; revenue: 2 million")]
    ['-1.5', '1234.50', '2E+6']
    """
    return tuple(_value(found) for found in _NUMBER.finditer(_DATES_AND_TIMES.sub(" ", text)))


def _value(found: re.Match[str]) -> Decimal:
    exponent = (found["exponent"] or "").replace("−", "-")
    number = Decimal(found["digits"].replace(",", "") + exponent)
    unit = (found["letter"] or found["apart"] or found["word"] or "").lower()
    # "thousand" and "tn" begin with the same letter.
    power = 3 if unit.startswith("thousand") else _POWERS[unit[0]] if unit else 0
    is_negative = ((found["sign"] or "+") in _MINUS) != ((found["inner_sign"] or "+") in _MINUS)
    return number.scaleb(power) * (-1 if is_negative else 1)


def _has_number(expected: HasNumber, text: str) -> bool:
    numbers = _different_numbers(text) if expected.unit is None else _quantities(text, expected.unit)
    if expected.at_most is not None and len(numbers) > expected.at_most:
        return False
    # Use decimals, because floats would round: 213.885 is within 0.005 of 213.88.
    value, tolerance = Decimal(str(expected.value)), Decimal(str(expected.tolerance))
    return any(abs(number - value) <= tolerance for number in numbers)


@lru_cache(maxsize=64)
def _different_numbers(text: str) -> frozenset[Decimal]:
    # A goal may check several numbers of one text.
    return frozenset(numbers_in(text))


# Units by kind, each with its size in the smallest one.
_SIZES: Final[Mapping[str, Mapping[str, str]]] = {
    "length": {"mm": "1", "cm": "1e1", "m": "1e3", "km": "1e6", "inch": "25.4", "ft": "304.8", "mi": "1609344"},
    "mass": {"mg": "1", "g": "1e3", "kg": "1e6", "t": "1e9", "oz": "28349.523125", "lb": "453592.37"},
    "time": {"ms": "1", "s": "1e3", "min": "6e4", "h": "3.6e6", "d": "8.64e7"},
    "data": {"B": "1", "KB": "1e3", "MB": "1e6", "GB": "1e9", "TB": "1e12"},
    "temperature": {"°C": "1.8", "°F": "1"},
    "share": {"%": "1"},
}
_UNITS: Final[Mapping[str, tuple[str, Decimal]]] = {
    unit: (kind, Decimal(size)) for kind, sizes in _SIZES.items() for unit, size in sizes.items()
}
_ZEROS: Final[Mapping[str, Decimal]] = {"°C": Decimal(32)}  # in °F
_SPELLED: Final = {
    "mm": "millimetre millimeter",
    "cm": "centimetre centimeter",
    "m": "metre meter",
    "km": "kilometre kilometer",
    "inch": "inche",
    "ft": "foot feet",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "t": "tonne",
    "oz": "ounce",
    "lb": "pound lb",
    "ms": "millisecond",
    "s": "second sec",
    "min": "minute min",
    "h": "hour hr",
    "d": "day",
    "B": "byte",
    "%": "percent",
}
_UNIT_OF: Final = {unit: unit for unit in _UNITS} | {
    form: unit for unit, words in _SPELLED.items() for word in words.split() for form in (word, f"{word}s")
}
_QUANTITY = re.compile(
    r"(?<![\w.,])(?P<number>[-+−]?[0-9]{1,3}(?:,[0-9]{3}){1,9}+(?:\.[0-9]{1,30}+)?|[-+−]?[0-9]{1,30}+(?:\.[0-9]{1,30}+)?)"
    r"[ \u00a0\u202f-]?(?P<unit>[a-zA-Z]{1,12}+|%|°[CF])(?!\w)"
)


def _quantities(text: str, wanted: str) -> frozenset[Decimal]:
    """Return the quantities in a text that can be converted to the unit `wanted`, in that unit."""
    kind, size = _UNITS[wanted]
    found: set[Decimal] = set()
    for match in _QUANTITY.finditer(text):
        unit = _UNIT_OF.get(match["unit"]) or _UNIT_OF.get(match["unit"].lower())
        if unit is not None and _UNITS[unit][0] == kind:
            number = Decimal(match["number"].replace(",", "").replace("−", "-"))
            found.add((number * _UNITS[unit][1] + _ZEROS.get(unit, 0) - _ZEROS.get(wanted, 0)) / size)
    return frozenset(found)


_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE = re.compile(
    rf"(?<![\w.:])(?:(?P<iso>{_ISO_DATE.pattern})(?![0-9])"
    rf"|(?P<month>{_MONTH})\s(?P<day>{_DAY}),?\s(?P<year>[0-9]{{4}})(?!\w)"
    rf"|(?P<day2>{_DAY})\s(?P<month2>{_MONTH}),?\s(?P<year2>[0-9]{{4}})(?!\w))",
    re.IGNORECASE,
)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def _dates_in(text: str) -> Iterator[date]:
    for found in _DATE.finditer(text):
        written = found["iso"]
        if written is None:
            month = 1 + _MONTHS.index((found["month"] or found["month2"])[:3].lower())
            day = int((found["day"] or found["day2"]).rstrip("stndrhSTNDRH"))
            written = f"{found['year'] or found['year2']}-{month:02}-{day:02}"
        if (known := _day(written)) is not None:
            yield known


def _day(written: str) -> date | None:
    try:
        return date.fromisoformat(written)
    except ValueError:
        return None  # no such day in the calendar


def _object_in(text: str) -> object | None:
    """Return the JSON object in an answer, which may have text around it."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        return json.loads(text[begin : end + 1]) if begin >= 0 else None
    except (ValueError, RecursionError):
        return None


def _field_meets(found: object, name: str, expected: ExpectedText) -> bool:
    for key in name.split("."):
        if isinstance(found, Mapping):
            found = cast("Mapping[str, object]", found).get(key)
        elif isinstance(found, list) and key.isdecimal():
            found = next(iter(cast("list[object]", found)[int(key) : int(key) + 1]), None)
        else:
            found = None
    if found is None:
        return False
    return meets(expected, found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))


def _contains_words(text: str, words: str) -> bool:
    return _pattern_of(words).search(text) is not None


@lru_cache(maxsize=4096)
def _pattern_of(words: str) -> re.Pattern[str]:
    """Return a pattern that matches whole words: not 5 in 3.5, nor 30 in 23:30. A period or a colon may follow."""
    escaped = r"\s+".join(re.escape(word) for word in words.split())
    return re.compile(rf"(?<![\w.])(?<![0-9]:){escaped}(?!\w|\.\w|:[0-9])", re.IGNORECASE)


def require_scorable(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Raise if a task's goal cannot be checked, or if none of the parts that it checks has a weight."""
    for task in tasks:
        for text in [task.goal.answer, *task.goal.texts_of_state]:
            if text is not None and (problem := why_unusable(text)) is not None:
                raise TaskFileError(f"task {task.id}: {problem}", fix="correct the task's goal")
    require_judge(tasks, rewards)
    for task in tasks:
        names = [*rewards.functions, "check", *(["rubric"] if rewards.judge is not None else [])]
        graded = dict.fromkeys(names, 0.0)
        try:
            weigh(score(task.goal, (), None, None, weights=rewards, graded=graded), rewards)
        except BadValueError as error:
            raise BadValueError(f"task {task.id}: {error.what}", fix=error.fix) from error


def require_judge(tasks: Sequence[Task], rewards: RewardsConfig) -> None:
    """Without a judge, warn that rubrics are not graded, and raise if a task checks nothing else."""
    if rewards.judge is not None:
        return
    with_rubric = [task for task in tasks if task.goal.rubric is not None]
    for task in with_rubric:
        goal = task.goal
        if goal.answer is None and not (goal.calls or goal.min_calls or goal.state or goal.writes or goal.check):
            raise BadValueError(
                f"task {task.id} is checked only by its rubric, but rewards.judge is not set",
                fix="configure rewards.judge, or give the task 'answer', 'calls' or 'state'",
            )
    if with_rubric:
        _logger.warning(
            "%d of %d tasks have a rubric (first: %s), but rewards.judge is not set, so rubrics are ignored",
            len(with_rubric),
            len(tasks),
            with_rubric[0].id,
        )
