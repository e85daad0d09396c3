"""When the world is: a fixed Friday afternoon in New York, and the trading days that led up to it."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

__all__ = [
    "NEW_YORK",
    "NOW",
    "NUM_TRADING_DAYS",
    "OPENING",
    "TODAY",
    "TRADING_DAYS",
    "day_in_words",
    "minutes_traded",
    "moment",
    "trading_days",
]

NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime(2025, 6, 27, 15, 30, tzinfo=NEW_YORK)
TODAY = NOW.date()
NUM_TRADING_DAYS = 260
OPENING = time(9, 30)

_MINUTES_A_DAY = 390
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_HOLIDAYS = frozenset(
    date.fromisoformat(day)
    for day in (
        "2024-05-27",
        "2024-06-19",
        "2024-07-04",
        "2024-09-02",
        "2024-11-28",
        "2024-12-25",
        "2025-01-01",
        "2025-01-20",
        "2025-02-17",
        "2025-04-18",
        "2025-05-26",
        "2025-06-19",
    )
)


def _last_trading_days(count: int) -> tuple[date, ...]:
    days: list[date] = []
    day = TODAY
    while len(days) < count:
        if day.weekday() < 5 and day not in _HOLIDAYS:
            days.append(day)
        day -= timedelta(days=1)
    return tuple(reversed(days))


# Oldest first; the last one is today.
TRADING_DAYS = _last_trading_days(NUM_TRADING_DAYS)


def trading_days(start: date, end: date) -> tuple[date, ...]:
    """The days from `start` to `end`, both included, that the world has prices of."""
    return tuple(day for day in TRADING_DAYS if start <= day <= end)


def minutes_traded(day: date) -> int:
    """How many minutes of a trading day have passed: all of them, except today."""
    if day != TODAY:
        return _MINUTES_A_DAY
    return (NOW.hour - OPENING.hour) * 60 + NOW.minute - OPENING.minute


def moment(day: date, clock: time = time(0)) -> datetime:
    """A time of day in New York."""
    return datetime.combine(day, clock, tzinfo=NEW_YORK)


def day_in_words(day: date) -> str:
    """Such as "June 3, 2025", whatever the locale of the machine."""
    return f"{_MONTHS[day.month - 1]} {day.day}, {day.year}"
