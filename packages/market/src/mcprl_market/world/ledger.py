"""The numbers of a world: companies, prices and statements. News, web pages and chat are derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, time, timedelta
from functools import cached_property

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

LAST_FISCAL_YEAR = 2025
_NUM_YEARS = 5
# Figures are multiples of this, so a text in millions with one decimal is exact.
_UNIT = 100_000


def earnings_per_share(net_income: int, shares: int) -> float:
    """Return net income divided by shares, in dollars rounded to cents."""
    return round(net_income * 100 / shares) / 100


def make_statements(seed: int, business: Business) -> list[tuple[Period, Statement]]:
    """Return all statements of a company, oldest first. Each year comes after its four quarters."""
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
    # Only a profit is taxed.
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
    """Return the last day of a quarter. A fiscal year ends in `fiscal_month` of the calendar year it is named after."""
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
    """All numeric facts of the world of a seed. Symbols may be in any case."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.businesses: tuple[Business, ...] = make_businesses(seed)
        self.companies: tuple[Company, ...] = tuple(business.company for business in self.businesses)
        self._companies = {company.symbol: company for company in self.companies}
        self._prices: dict[str, list[tuple[date, Prices]]] = {symbol: [] for symbol in self._companies}
        for symbol, day, prices in daily_prices(seed, self.businesses):
            self._prices[symbol].append((day, prices))
        self._reports: dict[tuple[str, Period], list[Statement]] = {}
        for business in self.businesses:
            for period, made in make_statements(seed, business):
                self._reports.setdefault((made.symbol, period), []).insert(0, made)

    def company(self, symbol: str) -> Company | None:
        return self._companies.get(symbol.strip().upper())

    def daily(self, symbol: str, start: date, end: date) -> list[tuple[date, Prices]]:
        """Return the daily prices of a known company in cents, oldest first."""
        return [(day, prices) for day, prices in self._prices[symbol] if start <= day <= end]

    def bars(
        self, symbol: str, start: date, end: date, frequency: Frequency = Frequency.DAILY
    ) -> tuple[Bar, ...] | None:
        """Return the bars of the trading days from `start` to `end`, both included, oldest first; None for an unknown
        symbol.

        A daily bar starts at midnight, a shorter one when its trading starts. The hours of a day are counted from 9:30.
        """
        company = self.company(symbol)
        if company is None:
            return None
        days = self.daily(company.symbol, start, end)
        if frequency == Frequency.DAILY:
            return tuple(_bar(company.symbol, day, time(0), prices) for day, prices in days)
        size = _MINUTES_A_BAR[frequency]
        return tuple(
            _bar(company.symbol, day, (moment(TODAY, OPENING) + timedelta(minutes=i * size)).time(), prices)
            for day, of_day in days
            for i, prices in enumerate(in_chunks(minute_prices(self.seed, company.symbol, day, of_day), size))
        )

    def previous_close(self, symbol: str) -> Bar | None:
        """Return the daily bar of the last full trading day."""
        bars = self.bars(symbol, TRADING_DAYS[-2], TRADING_DAYS[-2])
        return None if bars is None else bars[0]

    def reports(self, symbol: str, period: Period = Period.ANNUAL) -> list[Statement]:
        """Return all statements of a known company, newest first."""
        return self._reports[symbol, period]

    def statements(self, symbol: str, period: Period = Period.ANNUAL, limit: int = 2) -> tuple[Statement, ...] | None:
        """Return the last statements, newest first; None for an unknown symbol."""
        company = self.company(symbol)
        return None if company is None else tuple(self.reports(company.symbol, period)[: max(0, limit)])

    @cached_property
    def quotes(self) -> Mapping[str, Quote]:
        """The current quote of each stock, by symbol."""
        return {company.symbol: self._make_quote(company) for company in self.companies}

    def quote(self, symbol: str) -> Quote | None:
        """Return the current quote: today's bar so far, compared with the previous close."""
        return self.quotes.get(symbol.strip().upper())

    def gainers(self, limit: int) -> tuple[Quote, ...]:
        """Return the stocks that are up today, largest gain in percent first; ties by symbol."""
        return self._movers(lambda quote: -quote.change_percent, limit)

    def losers(self, limit: int) -> tuple[Quote, ...]:
        """Return the stocks that are down today, largest loss in percent first; ties by symbol."""
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


def _price_to_earnings(price: int, quarters: Sequence[Statement]) -> float | None:
    """Return price / earnings per share over the last four quarters, to two decimals; None for a loss."""
    earnings = sum(round(quarter.eps * 100) for quarter in quarters)
    return round(price / earnings, 2) if earnings > 0 else None


def _bar(symbol: str, day: date, clock: time, prices: Prices) -> Bar:
    first, high, low, last = (cents / 100 for cents in prices[:4])
    start = moment(day, clock)
    return Bar(symbol=symbol, start=start, open=first, high=high, low=low, close=last, volume=prices.volume)
