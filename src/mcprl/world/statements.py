"""Income statements: twenty quarters drawn one by one, and the five fiscal years that are their sums."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from mcprl.world.companies import Business
from mcprl.world.draws import Draws
from mcprl.world.facts import Period, Statement

__all__ = ["LAST_FISCAL_YEAR", "earnings_per_share", "make_statements"]

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
