"""What is counted in a world: companies, prices and statements. Whatever is written about them is made from these."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from functools import cached_property
from typing import Any

from mcprl_market.world.companies import Business, make_businesses
from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Bar, Company, Frequency, Period, Quote, Statement
from mcprl_market.world.prices import (
    OPENING,
    TODAY,
    TRADING_DAYS,
    Prices,
    daily_prices,
    in_chunks,
    minute_prices,
    moment,
    percent_change,
)

__all__ = ["Ledger"]


# Prices are whole cents, moments are ISO texts of New York. `pages` is what web search finds.
_SCHEMA = """
CREATE TABLE bars (
    symbol TEXT, day TEXT, open INTEGER, high INTEGER, low INTEGER, close INTEGER, volume INTEGER,
    PRIMARY KEY (symbol, day)
) WITHOUT ROWID;
CREATE TABLE statements (
    symbol TEXT, period TEXT, ended TEXT, label TEXT, revenue INTEGER, gross_profit INTEGER, operating_income INTEGER,
    net_income INTEGER, eps REAL, PRIMARY KEY (symbol, period, ended)
) WITHOUT ROWID;
CREATE TABLE articles (
    id INTEGER PRIMARY KEY, symbols TEXT, title TEXT, text TEXT, publisher TEXT, published TEXT, url TEXT
);
CREATE TABLE mentions (symbol TEXT, article INTEGER, PRIMARY KEY (symbol, article)) WITHOUT ROWID;
CREATE VIRTUAL TABLE pages USING fts5 (title, content, url UNINDEXED, tokenize = 'porter unicode61');
"""


class Database:
    """Tables `bars`, `statements`, `articles`, `mentions` and `pages`.

    >>> database = Database()
    >>> database.write("INSERT INTO mentions VALUES (?, ?)", [("VLDX", 1)])
    >>> database.rows("SELECT symbol FROM mentions WHERE article = ?", 1)
    [('VLDX',)]
    """

    def __init__(self) -> None:
        # Tools run in threads; the lock makes one connection safe for all of them, however SQLite was compiled.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        weakref.finalize(self, self._connection.close)

    def write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each row, all of them in one transaction."""
        # Making a row may read the database, so all of them are made before the lock is taken.
        made = list(rows)
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.executemany(statement, made)
            self._connection.execute("COMMIT")

    def rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, parameters).fetchall()


LAST_FISCAL_YEAR = 2025
_NUM_YEARS = 5
# Figures are multiples of this, so that a text in millions with one decimal is exact.
_UNIT = 100_000


def earnings_per_share(net_income: int, shares: int) -> float:
    """Net income over shares, in dollars rounded to cents."""
    return round(net_income * 100 / shares) / 100


def make_statements(seed: int, business: Business) -> list[tuple[Period, Statement]]:
    """All statements of a company, oldest first, each year after its four quarters."""
    draws = Draws(seed, "statements", business.company.symbol)
    made: list[tuple[Period, Statement]] = []
    revenues = [float(business.revenue)]
    for _ in range(_NUM_YEARS - 1):
        revenues.append(revenues[-1] / (1 + business.growth + 0.03 * draws.bell()))
    for age in reversed(range(_NUM_YEARS)):
        year = LAST_FISCAL_YEAR - age
        quarters = [_quarter(draws, business, revenues[age] / 4, year, number) for number in (1, 2, 3, 4)]
        made += [(Period.QUARTERLY, quarter) for quarter in quarters]
        made.append((Period.ANNUAL, _year(quarters, f"FY{year}", business.company.shares or 1)))
    return made


def _quarter(draws: Draws, business: Business, usual_revenue: float, year: int, number: int) -> Statement:
    revenue = round(usual_revenue * (0.94 + 0.024 * number + 0.02 * draws.bell()) / _UNIT)
    gross = round(revenue * (business.sector.gross_margin + 0.012 * draws.bell()))
    operating = min(gross, round(revenue * (business.operating_margin + 0.012 * draws.bell())))
    # Taxes are paid on a profit only.
    net = round(operating * draws.between(0.74, 0.84)) if operating > 0 else round(operating * draws.between(1.0, 1.1))
    return Statement(
        symbol=business.company.symbol,
        label=f"Q{number} {year}",
        end=_quarter_end(business.fiscal_month, year, number),
        revenue=revenue * _UNIT,
        gross_profit=gross * _UNIT,
        operating_income=operating * _UNIT,
        net_income=net * _UNIT,
        eps=earnings_per_share(net * _UNIT, business.company.shares or 1),
    )


def _quarter_end(fiscal_month: int, fiscal_year: int, number: int) -> date:
    """The last day of a quarter of the fiscal year that ends with `fiscal_month` of the calendar year of that name."""
    months = fiscal_year * 12 + fiscal_month - 1 - 3 * (4 - number)
    after = months + 1
    return date(after // 12, after % 12 + 1, 1) - timedelta(days=1)


def _year(quarters: Sequence[Statement], label: str, shares: int) -> Statement:
    net_income = sum(quarter.net_income for quarter in quarters)
    return Statement(
        symbol=quarters[-1].symbol,
        label=label,
        end=quarters[-1].end,
        revenue=sum(quarter.revenue for quarter in quarters),
        gross_profit=sum(quarter.gross_profit for quarter in quarters),
        operating_income=sum(quarter.operating_income for quarter in quarters),
        net_income=net_income,
        eps=earnings_per_share(net_income, shares),
    )


_MINUTES_A_BAR = {Frequency.HOURLY: 60, Frequency.MINUTE: 1}


class Ledger:
    """The counted facts of the world of a seed, kept in its database. Symbols may be in any case."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.businesses: tuple[Business, ...] = make_businesses(seed)
        self.companies: tuple[Company, ...] = tuple(business.company for business in self.businesses)
        self.database = Database()
        self._by_symbol = {business.company.symbol: business for business in self.businesses}
        written = {day: day.isoformat() for day in TRADING_DAYS}
        self.database.write(
            "INSERT INTO bars VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((symbol, written[day], *prices) for symbol, day, prices in daily_prices(seed, self.businesses)),
        )
        self.database.write(
            "INSERT INTO statements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (business.company.symbol, period.value, made.end.isoformat(), *_figures(made))
                for business in self.businesses
                for period, made in make_statements(seed, business)
            ),
        )

    def business(self, symbol: str) -> Business | None:
        return self._by_symbol.get(symbol.strip().upper())

    def company(self, symbol: str) -> Company | None:
        business = self.business(symbol)
        return None if business is None else business.company

    def daily(self, symbol: str, start: date, end: date) -> list[tuple[date, Prices]]:
        """The daily prices of a known company in cents, oldest first."""
        rows = self.database.rows(
            "SELECT day, open, high, low, close, volume FROM bars "
            "WHERE symbol = ? AND day BETWEEN ? AND ? ORDER BY day",
            symbol,
            start.isoformat(),
            end.isoformat(),
        )
        return [(date.fromisoformat(day), Prices(*prices)) for day, *prices in rows]

    def bars(
        self, symbol: str, start: date, end: date, frequency: Frequency = Frequency.DAILY
    ) -> tuple[Bar, ...] | None:
        """Bars of the trading days from `start` to `end`, both included, oldest first; None for an unknown symbol.

        A daily bar starts at midnight, a shorter one when its trading starts; the hours of a day count from 9:30.
        """
        company = self.company(symbol)
        if company is None:
            return None
        days = self.daily(company.symbol, start, end)
        if frequency == Frequency.DAILY:
            return tuple(_bar(company.symbol, day, time(0), prices) for day, prices in days)
        size = _MINUTES_A_BAR[frequency]
        return tuple(
            _bar(company.symbol, day, _after_opening(i * size), prices)
            for day, of_day in days
            for i, prices in enumerate(in_chunks(minute_prices(self.seed, company.symbol, day, of_day), size))
        )

    def previous_close(self, symbol: str) -> Bar | None:
        """The daily bar of the last full trading day."""
        bars = self.bars(symbol, TRADING_DAYS[-2], TRADING_DAYS[-2])
        return None if bars is None else bars[0]

    def reports(self, symbol: str, period: Period = Period.ANNUAL) -> list[Statement]:
        """All statements of a known company, newest first."""
        rows = self.database.rows(
            "SELECT label, ended, revenue, gross_profit, operating_income, net_income, eps FROM statements "
            "WHERE symbol = ? AND period = ? ORDER BY ended DESC",
            symbol,
            period.value,
        )
        return [
            Statement(
                symbol=symbol,
                label=label,
                end=date.fromisoformat(ended),
                revenue=revenue,
                gross_profit=gross,
                operating_income=operating,
                net_income=net,
                eps=eps,
            )
            for label, ended, revenue, gross, operating, net, eps in rows
        ]

    def statements(self, symbol: str, period: Period = Period.ANNUAL, limit: int = 2) -> tuple[Statement, ...] | None:
        """The last statements, newest first; None for an unknown symbol."""
        company = self.company(symbol)
        return None if company is None else tuple(self.reports(company.symbol, period)[: max(0, limit)])

    @cached_property
    def quotes(self) -> Mapping[str, Quote]:
        """The state of each stock now, by its symbol."""
        return {company.symbol: self._make_quote(company) for company in self.companies}

    def quote(self, symbol: str) -> Quote | None:
        """The state now: the bar of today so far, against the previous close."""
        return self.quotes.get(symbol.strip().upper())

    def gainers(self, limit: int) -> tuple[Quote, ...]:
        """The stocks that are up today, the largest gain in per cent first; ties by symbol."""
        return self._movers(lambda quote: -quote.change_percent, limit)

    def losers(self, limit: int) -> tuple[Quote, ...]:
        """The stocks that are down today, the largest loss in per cent first; ties by symbol."""
        return self._movers(lambda quote: quote.change_percent, limit)

    def _movers(self, rank: Callable[[Quote], float], limit: int) -> tuple[Quote, ...]:
        moved = sorted(self.quotes.values(), key=lambda quote: (rank(quote), quote.symbol))
        return tuple(quote for quote in moved if rank(quote) < 0)[: max(0, limit)]

    def _make_quote(self, company: Company) -> Quote:
        (_, before), (_, now) = self.daily(company.symbol, TRADING_DAYS[-2], TODAY)
        return Quote(
            symbol=company.symbol,
            name=company.name,
            price=now.close / 100,
            previous_close=before.close / 100,
            change=(now.close - before.close) / 100,
            change_percent=percent_change(now.close, before.close),
            open=now.open / 100,
            day_low=now.low / 100,
            day_high=now.high / 100,
            volume=now.volume,
            market_cap=now.close * (company.shares or 0) // 100,
            pe=_price_to_earnings(now.close, self.reports(company.symbol, Period.QUARTERLY)[:4]),
        )


def _figures(made: Statement) -> tuple[str | int | float, ...]:
    return (made.label, made.revenue, made.gross_profit, made.operating_income, made.net_income, made.eps)


def _price_to_earnings(price: int, quarters: Sequence[Statement]) -> float | None:
    """Price over the earnings a share of the last four quarters, to two decimals; None where they earned nothing."""
    earnings = sum(round(quarter.eps * 100) for quarter in quarters)
    return round(price / earnings, 2) if earnings > 0 else None


def _after_opening(minutes: int) -> time:
    return (moment(TODAY, OPENING) + timedelta(minutes=minutes)).time()


def _bar(symbol: str, day: date, clock: time, prices: Prices) -> Bar:
    return Bar(
        symbol=symbol,
        start=moment(day, clock),
        open=prices.open / 100,
        high=prices.high / 100,
        low=prices.low / 100,
        close=prices.close / 100,
        volume=prices.volume,
    )
