"""Prices: daily bars from a random walk, and the minutes of a day, which add up exactly to its daily bar.

The rounding rule of the world: prices and changes are whole cents. A change in percent is rounded once to two decimals,
from the cents, by `percent_change`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from itertools import accumulate, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from mcprl_market.world.companies import SECTORS, WORDS, Business
from mcprl_market.world.draws import Draws

NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime(2025, 6, 27, 15, 30, tzinfo=NEW_YORK)
TODAY = NOW.date()
NUM_TRADING_DAYS = 260
OPENING = time(9, 30)

_MINUTES_A_DAY = 390
_MONTHS: Sequence[str] = WORDS["months"]
_HOLIDAYS = frozenset(map(date.fromisoformat, WORDS["holidays"]))


def _last_trading_days(count: int) -> tuple[date, ...]:
    days: list[date] = []
    day = TODAY
    while len(days) < count:
        if day.weekday() < 5 and day not in _HOLIDAYS:
            days.append(day)
        day -= timedelta(days=1)
    return tuple(reversed(days))


# Oldest first. The last one is today.
TRADING_DAYS = _last_trading_days(NUM_TRADING_DAYS)


def trading_days(start: date, end: date) -> tuple[date, ...]:
    """Return the trading days from `start` to `end`, both included."""
    return tuple(day for day in TRADING_DAYS if start <= day <= end)


def minutes_traded(day: date) -> int:
    """Return how many minutes of a trading day are over: all of them, unless the day is today."""
    if day != TODAY:
        return _MINUTES_A_DAY
    return (NOW.hour - OPENING.hour) * 60 + NOW.minute - OPENING.minute


def moment(day: date, clock: time = time(0)) -> datetime:
    """Return a time of day in New York."""
    return datetime.combine(day, clock, tzinfo=NEW_YORK)


def day_in_words(day: date) -> str:
    """Format a day as "June 3, 2025", in any locale."""
    return f"{_MONTHS[day.month - 1]} {day.day}, {day.year}"


class Prices(NamedTuple):
    """A bar in cents: Prices(open=8125, high=8210, low=8101, close=8177, volume=1_204_330)"""

    open: int
    high: int
    low: int
    close: int
    volume: int


def percent_change(new: int, old: int) -> float:
    """Return the change of a price (in cents) in percent, rounded to two decimals.

    >>> percent_change(10_150, 10_000), percent_change(9_999, 30_001)
    (1.5, -66.67)
    """
    return round(10_000 * (new - old) / old) / 100


def daily_prices(seed: int, businesses: Sequence[Business]) -> Iterator[tuple[str, date, Prices]]:
    """Yield the daily bars of all companies. Each moves with the market, its sector and its own random walk."""
    market_draws = Draws(seed, "market returns")
    market = [0.0003 + 0.007 * market_draws.bell() for _ in TRADING_DAYS]
    # Today the market as a whole does not move, so that there are always enough gainers and losers to list.
    market[-1] = 0.0
    parts_of_day = [minutes_traded(day) / minutes_traded(TRADING_DAYS[0]) for day in TRADING_DAYS]
    sectors: Mapping[str, list[float]] = {
        sector.name: [0.006 * draws.bell() for _ in TRADING_DAYS]
        for sector in SECTORS
        for draws in (Draws(seed, "sector returns", sector.name),)
    }
    for business in businesses:
        symbol = business.company.symbol
        draws = Draws(seed, "returns", symbol)
        previous = business.first_price
        usual_volume = draws.between(0.002, 0.009) * (business.company.shares or 0)
        volatility = business.volatility
        for day, part_of_day, of_market, of_sector in zip(
            TRADING_DAYS, parts_of_day, market, sectors[business.sector.name], strict=True
        ):
            surprise = draws.between(-0.09, 0.09) if draws.chance(0.02) else 0.0
            change = business.beta * of_market + of_sector + 0.7 * volatility * draws.bell() + surprise
            prices = _day(draws, previous, change, volatility, usual_volume * part_of_day)
            yield symbol, day, prices
            previous = prices.close


def _day(draws: Draws, previous: int, change: float, volatility: float, usual_volume: float) -> Prices:
    # A stock never falls below a dollar, so a cent is always a small part of its price.
    close = max(100, round(previous * (1 + change)))
    opening = max(100, round(previous * (1 + 0.3 * change + 0.2 * volatility * draws.bell())))
    reach = previous * volatility * 0.7
    high = max(opening, close) + round(reach * draws.fraction())
    low = max(50, min(opening, close) - round(reach * draws.fraction()))
    return Prices(opening, high, low, close, int(usual_volume * draws.between(0.6, 1.4) * (1 + 12 * abs(change))) + 400)


def minute_prices(seed: int, symbol: str, day: date, of_day: Prices) -> list[Prices]:
    """Return the minute bars of a day, from its opening on.

    The first minute opens at the day's open and the last closes at its close. The highest high and the lowest low are
    the day's, and the volumes add up to the day's.
    """
    draws = Draws(seed, "minutes", symbol, day.isoformat())
    count = minutes_traded(day)
    path = _path(draws, of_day, count)
    wick = max(1, (of_day.high - of_day.low) // 40)
    highs = [min(of_day.high, max(path[i], path[i + 1]) + draws.integer(0, wick)) for i in range(count)]
    lows = [max(of_day.low, min(path[i], path[i + 1]) - draws.integer(0, wick)) for i in range(count)]
    highs[highs.index(max(highs))] = of_day.high
    lows[lows.index(min(lows))] = of_day.low
    volumes = _split(of_day.volume, [_busyness(i) * draws.between(0.4, 1.6) for i in range(count)])
    return [Prices(path[i], highs[i], lows[i], path[i + 1], volumes[i]) for i in range(count)]


def _path(draws: Draws, of_day: Prices, count: int) -> list[int]:
    """Return the price at the end of each minute, preceded by the opening: a bridge from the opening to the close."""
    walk = [0.0]
    for _ in range(count):
        walk.append(walk[-1] + draws.fraction() - 0.5)
    bridge = [height - walk[-1] * (i / count) for i, height in enumerate(walk)]
    scale = 0.7 * (of_day.high - of_day.low) / (max(bridge) - min(bridge))
    slope = of_day.close - of_day.open
    heights = [round(of_day.open + slope * (i / count) + scale * height) for i, height in enumerate(bridge)]
    return [min(of_day.high, max(of_day.low, height)) for height in heights]


def _busyness(minute: int) -> float:
    """Return the relative volume of a minute: higher near the opening and the close than at noon."""
    from_noon = (minute - 195) / 195
    return 1.0 + 1.6 * from_noon * from_noon


def _split(total: int, weights: Sequence[float]) -> list[int]:
    """Return integers in proportion to the weights, with exactly this sum."""
    # Not sum(), because its rounding of floats differs between versions of Python.
    heights = list(accumulate(weights))
    bounds = [0, *(int(total * (height / heights[-1])) for height in heights)]
    return [after - before for before, after in pairwise(bounds)]


def in_chunks(minutes: Sequence[Prices], size: int) -> list[Prices]:
    """Combine consecutive minutes into longer bars. The last bar may be shorter."""
    chunks = [minutes[i : i + size] for i in range(0, len(minutes), size)]
    made: list[Prices] = []
    for chunk in chunks:
        high, low = max(minute.high for minute in chunk), min(minute.low for minute in chunk)
        made.append(Prices(chunk[0].open, high, low, chunk[-1].close, sum(minute.volume for minute in chunk)))
    return made
