"""Prices of the offline market: bars are consistent, and every way to ask for a price states the same one."""
# R14

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SEEDS, cents, companies, markets

from mcprl_market.world import open_market
from mcprl_market.world.facts import Frequency, Period

FAR_PAST, FAR_FUTURE = date(1990, 1, 1), date(2100, 1, 1)


def trading_day(market, number: int) -> date:
    bars = market.bars(market.companies[0].symbol, FAR_PAST, FAR_FUTURE)
    return bars[number % len(bars)].start.date()


def test_now_is_a_friday_afternoon_in_new_york_during_trading_hours():
    market = open_market(7)
    assert market.now.strftime("%A %H:%M %z") == "Friday 15:30 -0400"
    assert market.today == market.now.date()
    status = market.status()
    assert (status.now, status.session) == (market.now, "open")
    assert dict(status.exchanges) == {"NASDAQ": "open", "NYSE": "open"}


@given(companies())
def test_there_are_260_daily_bars_on_weekdays_up_to_today_and_none_on_holidays(chosen):
    market, company = chosen
    bars = market.bars(company.symbol, FAR_PAST, FAR_FUTURE)
    days = [bar.start.date() for bar in bars]
    assert len(days) == 260
    assert days == sorted(set(days))
    assert days[-1] == market.today
    assert all(day.weekday() < 5 for day in days)
    assert {date(2024, 7, 4), date(2024, 12, 25), date(2025, 1, 1), date(2025, 6, 19)}.isdisjoint(days)


@given(companies())
def test_a_bar_is_between_its_low_and_its_high_and_days_follow_each_other_closely(chosen):
    market, company = chosen
    bars = market.bars(company.symbol, FAR_PAST, FAR_FUTURE)
    for bar in bars:
        for price in (bar.open, bar.high, bar.low, bar.close):
            assert cents(price) > 0
        assert bar.low <= min(bar.open, bar.close)
        assert max(bar.open, bar.close) <= bar.high
        assert bar.volume > 0
    for before, after in pairwise(bars):
        assert abs(after.close / before.close - 1) < 0.25


@given(companies(), st.integers(0, 259), st.sampled_from([Frequency.HOURLY, Frequency.MINUTE]))
def test_hours_and_minutes_of_a_day_add_up_to_its_bar_exactly(chosen, number, frequency):
    market, company = chosen
    day = trading_day(market, number)
    (whole,) = market.bars(company.symbol, day, day)
    parts = market.bars(company.symbol, day, day, frequency)
    assert parts[0].open == whole.open
    assert parts[-1].close == whole.close
    assert max(part.high for part in parts) == whole.high
    assert min(part.low for part in parts) == whole.low
    assert sum(part.volume for part in parts) == whole.volume
    for part in parts:
        assert part.low <= min(part.open, part.close) <= max(part.open, part.close) <= part.high
        assert part.volume >= 0


@settings(max_examples=20)
@given(companies(), st.integers(0, 259))
def test_minutes_run_from_the_opening_to_the_close_or_to_now(chosen, number):
    market, company = chosen
    day = trading_day(market, number)
    minutes = market.bars(company.symbol, day, day, Frequency.MINUTE)
    opening = datetime.combine(day, time(9, 30), tzinfo=market.now.tzinfo)
    end = market.now if day == market.today else opening.replace(hour=16, minute=0)
    assert [bar.start for bar in minutes] == [
        opening + timedelta(minutes=i) for i in range((end - opening) // timedelta(minutes=1))
    ]
    hours = market.bars(company.symbol, day, day, Frequency.HOURLY)
    assert [bar.start for bar in hours] == [bar.start for bar in minutes][::60]


@given(companies())
def test_a_quote_agrees_with_the_bars_the_previous_close_the_shares_and_the_statements(chosen):
    market, company = chosen
    quote, before = market.quote(company.symbol), market.previous_close(company.symbol)
    (today,) = market.bars(company.symbol, market.today, market.today)
    last_minute = market.bars(company.symbol, market.today, market.today, Frequency.MINUTE)[-1]
    assert quote.name == company.name
    assert quote.price == today.close == last_minute.close
    assert (quote.open, quote.day_low, quote.day_high, quote.volume) == (
        today.open,
        today.low,
        today.high,
        today.volume,
    )
    assert quote.previous_close == before.close
    assert before == market.bars(company.symbol, FAR_PAST, FAR_FUTURE)[-2]
    change = cents(quote.price) - cents(quote.previous_close)
    assert cents(quote.change) == change
    assert abs(quote.change_percent - 100 * change / cents(quote.previous_close)) <= 0.005000001
    cents(quote.change_percent)
    assert quote.market_cap * 100 == cents(quote.price) * company.shares
    earned = sum(cents(quarter.eps) for quarter in market.statements(company.symbol, Period.QUARTERLY, 4))
    if earned > 0:
        assert quote.pe == round(cents(quote.price) / earned, 2)
    else:
        assert quote.pe is None


@given(markets(), st.integers(-2, 70))
def test_gainers_and_losers_are_the_quotes_in_order_with_ties_by_symbol(market, limit):
    quotes = [market.quote(company.symbol) for company in market.companies]
    up = sorted((q for q in quotes if q.change_percent > 0), key=lambda q: (-q.change_percent, q.symbol))
    down = sorted((q for q in quotes if q.change_percent < 0), key=lambda q: (q.change_percent, q.symbol))
    assert market.gainers(limit) == tuple(up[: max(0, limit)])
    assert market.losers(limit) == tuple(down[: max(0, limit)])


@pytest.mark.parametrize("seed", SEEDS)
def test_there_are_at_least_ten_gainers_and_ten_losers(seed):
    market = open_market(seed)
    assert len(market.gainers(10)) == len(market.losers(10)) == 10


@given(companies(), st.dates(date(2024, 1, 1), date(2026, 1, 1)), st.dates(date(2024, 1, 1), date(2026, 1, 1)))
def test_a_range_of_days_holds_the_bars_of_these_days_only(chosen, start, end):
    market, company = chosen
    everything = market.bars(company.symbol, FAR_PAST, FAR_FUTURE)
    assert market.bars(company.symbol, start, end) == tuple(
        bar for bar in everything if start <= bar.start.date() <= end
    )


@given(companies(), st.randoms(use_true_random=False))
def test_symbols_are_known_in_any_case(chosen, random):
    market, company = chosen
    written = "".join(random.choice((letter.lower(), letter)) for letter in company.symbol)
    assert market.company(written) == company
    assert market.quote(f" {written} ") == market.quote(company.symbol)
    assert market.bars(written, market.today, market.today) == market.bars(company.symbol, market.today, market.today)
    assert market.news([written], 3) == market.news([company.symbol], 3)


@given(markets(), st.text())
def test_an_unknown_symbol_has_no_facts(market, symbol):
    if symbol.strip().upper() in {company.symbol for company in market.companies}:
        return
    assert market.company(symbol) is None
    assert market.quote(symbol) is None
    assert market.previous_close(symbol) is None
    assert market.statements(symbol) is None
    assert market.bars(symbol, market.today, market.today) is None
    assert market.news([symbol], 10) == ()


def test_stocks_of_one_sector_move_together_more_than_stocks_of_two():
    market = open_market(7)
    returns = {}
    for company in market.companies:
        closes = [bar.close for bar in market.bars(company.symbol, FAR_PAST, FAR_FUTURE)]
        changes = [after / before - 1 for before, after in pairwise(closes)]
        mean = sum(changes) / len(changes)
        spread = sum((change - mean) ** 2 for change in changes) ** 0.5
        returns[company] = [(change - mean) / spread for change in changes]
    within, across = [], []
    for one, of_one in returns.items():
        for other, of_other in returns.items():
            if one.symbol < other.symbol:
                correlation = sum(a * b for a, b in zip(of_one, of_other, strict=True))
                (within if one.sector == other.sector else across).append(correlation)
    assert sum(within) / len(within) > sum(across) / len(across) + 0.1
