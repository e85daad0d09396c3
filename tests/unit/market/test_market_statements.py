"""Companies and their income statements in the offline market."""
# R14

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SEEDS, cents, companies

from mcprl_market.world import open_market
from mcprl_market.world.facts import Period
from mcprl_market.world.texts import EXPLAINERS, OTHER_PAGES

SUMMED = ("revenue", "gross_profit", "operating_income", "net_income")
WELL_KNOWN = {"AAPL", "MSFT", "GOOG", "AMZN", "NVDA", "META", "TSLA", "JPM", "WMT", "BRK", "NFLX", "SPY", "QQQ", "KHC"}


@given(companies())
def test_five_fiscal_years_are_the_exact_sums_of_their_twenty_quarters(chosen):
    market, company = chosen
    years = market.statements(company.symbol, Period.ANNUAL, 99)
    quarters = market.statements(company.symbol, Period.QUARTERLY, 99)
    assert [year.label for year in years] == [f"FY{year}" for year in (2025, 2024, 2023, 2022, 2021)]
    assert len(quarters) == 20
    for number, year in enumerate(years):
        of_year = quarters[4 * number : 4 * number + 4]
        assert [quarter.label for quarter in of_year] == [f"Q{i} {year.label[2:]}" for i in (4, 3, 2, 1)]
        assert of_year[0].end == year.end
        for field in SUMMED:
            assert getattr(year, field) == sum(getattr(quarter, field) for quarter in of_year)


@given(companies())
def test_earnings_a_share_are_net_income_over_shares_to_the_cent(chosen):
    market, company = chosen
    for period in Period:
        for statement in market.statements(company.symbol, period, 99):
            assert abs(cents(statement.eps) - 100 * statement.net_income / company.shares) <= 0.5


@given(companies())
def test_a_statement_shrinks_from_revenue_to_net_income_and_ends_a_month_before_now(chosen):
    market, company = chosen
    quarters = market.statements(company.symbol, Period.QUARTERLY, 99)
    for quarter in quarters:
        assert quarter.revenue > quarter.gross_profit > quarter.operating_income
        assert quarter.operating_income >= quarter.net_income
        assert (quarter.end + timedelta(days=1)).day == 1
    ends = [quarter.end for quarter in quarters]
    assert ends == sorted(set(ends), reverse=True)
    assert timedelta(days=28) < market.today - ends[0] < timedelta(days=92)


@given(companies(), st.integers(-3, 10**30))
def test_a_limit_shortens_the_list_from_its_old_end(chosen, limit):
    market, company = chosen
    everything = market.statements(company.symbol, Period.QUARTERLY, 99)
    assert market.statements(company.symbol, Period.QUARTERLY, limit) == everything[: max(0, limit)]
    assert len(market.news(None, limit)) == max(0, min(limit, len(market.news(None, 10**6))))


@pytest.mark.parametrize("seed", SEEDS)
def test_sixty_companies_have_unique_names_tickers_and_chiefs(seed):
    market = open_market(seed)
    assert len(market.companies) == 60
    assert market.name == f"market-{seed}"
    for field in ("symbol", "name", "ceo", "website"):
        assert len({getattr(company, field) for company in market.companies}) == 60
    assert len({company.name.split()[0] for company in market.companies}) == 60
    assert len({company.sector for company in market.companies}) == 8


@pytest.mark.parametrize("seed", SEEDS)
def test_a_profile_is_complete_and_points_to_no_real_site(seed):
    for company in open_market(seed).companies:
        assert all((company.industry, company.country, company.city, company.description, company.exchange))
        assert company.website.endswith(".example")
        assert company.employees >= 40
        assert 1900 < company.founded < 2020
        assert company.shares > 10_000_000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ticker_is_neither_a_word_nor_a_known_ticker_nor_a_prefix_of_another(seed):
    symbols = [company.symbol for company in open_market(seed).companies]
    prose = " ".join(f"{title} {content}" for title, content in [*EXPLAINERS, *OTHER_PAGES]).upper().split()
    for symbol in symbols:
        assert 3 <= len(symbol) <= 4
        assert symbol.isascii()
        assert symbol.isalpha()
        assert set(symbol).isdisjoint("AEIOUY")
    assert len({symbol[:3] for symbol in symbols}) == 60
    assert set(symbols).isdisjoint(WELL_KNOWN)
    assert set(symbols).isdisjoint(prose)
