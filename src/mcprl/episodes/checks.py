"""Judging a text against what a goal expects of it: the policy's answer, or what a tool says about the world.

Each check is a pure function of two values, takes time linear in the text, and gives nothing for a list of guesses.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache

from mcprl.goals import AnyText, Contains, Exactly, ExpectedText, HasAll, HasNumber, Matches
from mcprl.patterns import is_found, why_no_pattern

__all__ = ["meets", "numbers_in", "why_unusable"]

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
