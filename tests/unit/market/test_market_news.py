"""News of the offline market: what the texts say is what the tools say."""
# R14

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SEEDS, companies

from mcprl_market.world import open_market
from mcprl_market.world.facts import Period

DAY = r"(\w+ \d+, \d{4})"
MONEY = r"\$([\d,]+\.\d+)"


def number(text: str) -> float:
    return float(text.replace(",", ""))


def day_of(text: str) -> date:
    return datetime.strptime(text, "%B %d, %Y").date()


@cache
def closes(market, symbol: str) -> dict[date, float]:
    bars = market.bars(symbol, date(2024, 1, 1), market.today)
    return {bar.start.date(): bar.close for bar in bars}


def change_on(market, symbol: str, day: date) -> float:
    of_days = closes(market, symbol)
    before = max(other for other in of_days if other < day)
    return 100 * (of_days[day] - of_days[before]) / of_days[before]


def everything(market):
    return market.news(None, 10**6)


@pytest.mark.parametrize("seed", SEEDS)
def test_news_is_newest_first_within_sixty_days_and_before_now(seed):
    market = open_market(seed)
    published = [article.published for article in everything(market)]
    assert published == sorted(published, reverse=True)
    assert published[0] < market.now
    assert published[-1] > market.now - timedelta(days=61)
    assert {moment.tzinfo for moment in published} == {market.now.tzinfo}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_company_has_several_articles_and_some_articles_name_two(seed):
    market = open_market(seed)
    assert all(len(market.news([company.symbol], 99)) >= 4 for company in market.companies)
    assert sum(len(article.symbols) == 2 for article in everything(market)) >= 10
    assert len({article.url for article in everything(market)}) == len(everything(market))
    assert all(re.match(r"https://[a-z-]+\.example/2025/", article.url) for article in everything(market))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_article_names_the_companies_of_its_symbols_and_no_others(seed):
    market = open_market(seed)
    known = {company.symbol for company in market.companies}
    for article in everything(market):
        assert set(re.findall(r"\(([A-Z]+)\)", article.text)) & known == set(article.symbols)
        for symbol in article.symbols:
            assert f"{market.company(symbol).name} ({symbol})" in article.text


@given(companies(), st.data())
def test_news_of_several_symbols_is_that_of_each_of_them_merged(chosen, data):
    market, company = chosen
    other = data.draw(st.sampled_from(market.companies))
    asked = {company.symbol, other.symbol}
    wanted = tuple(article for article in everything(market) if asked & set(article.symbols))
    assert market.news([company.symbol, other.symbol, "NOSUCH"], 10**6) == wanted
    assert market.news([], 10) == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reported_move_is_the_change_between_the_closes(seed):
    market = open_market(seed)
    pattern = rf"\((\w+)\) (rose|fell) ([\d.]+)% on {DAY} and closed at {MONEY}"
    moves = [match for article in everything(market) if (match := re.search(pattern, article.text))]
    assert len(moves) == 60
    for match in moves:
        symbol, verb, percent, day, close = match.groups()
        assert closes(market, symbol)[day_of(day)] == number(close)
        signed = number(percent) * (1 if verb == "rose" else -1)
        assert abs(change_on(market, symbol, day_of(day)) - signed) < 0.005001


@pytest.mark.parametrize("seed", SEEDS)
def test_reported_results_are_those_of_the_statements(seed):
    market = open_market(seed)
    results = [article for article in everything(market) if " reports Q" in article.title]
    assert len(results) == 60
    for article in results:
        (symbol,) = article.symbols
        quarter, *_, year_ago = market.statements(symbol, Period.QUARTERLY, 5)
        year, before = market.statements(symbol, Period.ANNUAL, 2)
        stated = [round(number(amount) * 1e6) for amount in re.findall(rf"{MONEY} million", article.text)]
        assert stated == [
            quarter.revenue,
            year_ago.revenue,
            abs(quarter.net_income),
            year.revenue,
            before.revenue,
            abs(year.net_income),
        ]
        assert ("net loss of the quarter" in article.text) == (quarter.net_income < 0)
        assert number(re.search(rf"{MONEY} a share", article.text)[1]) == abs(quarter.eps)
        assert f"{stated[0] / 1e6:,.1f} million" in article.title
        assert article.published.date() > quarter.end


@pytest.mark.parametrize("seed", SEEDS)
def test_a_market_wrap_names_the_best_and_the_worst_stock_of_its_day(seed):
    market = open_market(seed)
    pattern = rf"On {DAY} the best stock was .* \((\w+)\) with a change of ([+-][\d.]+)%.* \((\w+)\) .* ([+-][\d.]+)%"
    wraps = [match for article in everything(market) if (match := re.search(pattern, article.text))]
    assert len(wraps) == 10
    for match in wraps:
        day, gainer, best, loser, worst = match.groups()
        changes = {company.symbol: change_on(market, company.symbol, day_of(day)) for company in market.companies}
        assert abs(changes[gainer] - float(best)) < 0.005001
        assert abs(changes[loser] - float(worst)) < 0.005001
        assert max(changes.values()) - changes[gainer] < 0.011
        assert changes[loser] - min(changes.values()) < 0.011


@pytest.mark.parametrize("seed", SEEDS)
def test_openings_chiefs_and_places_in_the_news_are_those_of_quote_and_profile(seed):
    market = open_market(seed)
    seen = set()
    for article in everything(market):
        company = market.company(article.symbols[0])
        quote = market.quote(company.symbol)
        if match := re.search(rf"opened at {MONEY} on {DAY}, after a previous close of {MONEY}", article.text):
            assert (number(match[1]), number(match[3])) == (quote.open, quote.previous_close)
            seen.add("opening")
        if match := re.match(r"(.*), chief executive officer of .* founded in (\d+)", article.text):
            assert (match[1], int(match[2])) == (company.ceo, company.founded)
            seen.add("chief")
        if match := re.search(r", based in ([^,]+), .* has ([\d,]+) employees", article.text):
            assert (match[1], number(match[2])) == (company.city, company.employees)
            seen.add("place")
        if match := re.search(r"led by ([^,]+),", article.text):
            assert match[1] == market.company(article.symbols[1]).ceo
            seen.add("partner")
    assert seen == {"opening", "chief", "place", "partner"}
