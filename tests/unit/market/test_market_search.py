"""Search in the offline market: companies by name, web pages by words, short answers by question."""
# R14

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import SEEDS, companies, markets

from mcprl_market.world import open_market

# What may trip up the query language of the full-text index, besides any text at all.
AWKWARD = (
    '"',
    "AND",
    "NEAR(a b)",
    "title:x",
    "a* OR",
    "^",
    "-",
    "(",
    "''; DROP TABLE pages",
    "\x00",
    "ß ﬁ ı İ",
    "\ud800",
)


@given(markets(), st.text() | st.sampled_from(AWKWARD) | st.lists(st.sampled_from(AWKWARD)).map(" ".join))
def test_no_text_breaks_a_search(market, query):
    found = market.documents(query, 5)
    assert len(found) <= 5
    assert all(0 < document.score <= 1 for document in found)
    scores = [document.score for document in found]
    assert scores == sorted(scores, reverse=True)
    assert len(market.search(query, 5)) <= 5
    assert isinstance(market.answer(query), str)


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of and", "\x00"])
def test_a_query_without_words_finds_nothing(query):
    market = open_market(7)
    assert market.documents(query, 5) == ()
    assert market.answer(query) == ""


@given(markets(), st.lists(st.sampled_from(["sector", "revenue", "price", "company", "ratio", "CEO"]), min_size=1))
def test_a_shorter_list_of_pages_is_the_start_of_a_longer_one(market, words):
    query = " ".join(words)
    longer = market.documents(query, 20)
    assert longer != ()
    assert market.documents(query, 3) == longer[:3]
    assert market.documents(query, 0) == market.documents(query, -1) == ()


@given(
    companies(),
    st.sampled_from(["who is the CEO of {0.name}?", "{0.symbol} headquarters", "when was {0.name} founded"]),
)
def test_a_question_about_a_company_finds_its_page_first_and_the_page_states_its_profile(chosen, question):
    market, company = chosen
    page = market.documents(question.format(company), 5)[0]
    assert page.title == f"{company.name} ({company.symbol})"
    year = market.statements(company.symbol)[0]
    for fact in (
        f"in the {company.sector} sector",
        f"industry is {company.industry}.",
        f"was founded in {company.founded} ",
        f"headquarters in {company.city}, ",
        f"is {company.ceo}.",
        f"has {company.employees:,} employees",
        f"has {company.shares:,} shares",
        f"In {year.label} its revenue was ${year.revenue / 1e6:,.1f} million.",
        company.website,
    ):
        assert fact in page.content


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sector_page_ranks_its_companies_by_market_capitalization(seed):
    market = open_market(seed)
    for sector in sorted({company.sector for company in market.companies}):
        page = market.documents(f"largest companies of the {sector} sector", 1)[0]
        assert page.title == f"{sector} sector: companies"
        quotes = [market.quote(company.symbol) for company in market.companies if company.sector == sector]
        ranked = sorted(quotes, key=lambda quote: -quote.market_cap)
        listed = re.findall(r"\(([A-Z]+)\)", page.content.split("smallest: ")[1])
        assert listed == [quote.symbol for quote in ranked]
        assert f"{ranked[0].name} ({ranked[0].symbol}) with ${ranked[0].market_cap:,}." in page.content
        assert f"has {len(ranked)} listed companies" in page.content
        answer = market.answer(f"What is the largest company in the {sector} sector?")
        assert answer.endswith(f"{ranked[0].name} ({ranked[0].symbol}) with ${ranked[0].market_cap:,}.")


def test_explanations_and_pages_about_other_things_are_found_too():
    market = open_market(7)
    assert market.documents("what is a P/E ratio", 1)[0].title == "What is a price-to-earnings ratio?"
    assert market.documents("pruning apple trees", 1)[0].title == "How to prune apple trees"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_article_is_a_page_with_the_same_address_and_text(seed):
    market = open_market(seed)
    pages = {page.url: page.content for page in market.pages}
    for article in market.news(None, 10**6):
        assert pages[article.url].endswith(article.text)


@given(companies(), st.sampled_from(["{0.name}", "{0.symbol}"]), st.sampled_from([str, str.lower, str.upper]))
def test_an_answer_states_what_the_tools_state(chosen, naming, spelling):
    market, company = chosen
    quote, year = market.quote(company.symbol), market.statements(company.symbol)[0]
    direction = "up" if quote.change_percent >= 0 else "down"
    ratio = f"is {quote.pe:.2f}." if quote.pe else "has no P/E ratio"
    for question, fact in (
        ("Who is the CEO of {}?", f"is {company.ceo}."),
        ("When was {} founded?", f"founded in {company.founded}."),
        ("Where is {} based?", f"headquarters in {company.city}, "),
        ("How many employees does {} have?", f"has {company.employees:,} employees."),
        ("What sector is {} in?", f"in the {company.sector} sector."),
        ("What is the stock price of {}?", f"at ${quote.price:,.2f}, {direction} {abs(quote.change_percent):.2f}% "),
        ("What was the previous close of {}?", f"was ${quote.previous_close:,.2f}."),
        ("What is the market cap of {}?", f"is ${quote.market_cap:,}."),
        ("What is the P/E ratio of {}?", ratio),
        ("What was the revenue of {}?", f"in {year.label} was ${year.revenue / 1e6:,.1f} million."),
    ):
        answer = market.answer(spelling(question.format(naming.format(company))))
        assert fact in answer
        assert f"{company.name} ({company.symbol})" in answer
        assert answer.count(company.symbol) == 1


def test_an_answer_about_two_companies_and_two_facts_has_four_sentences_in_order():
    one, other = open_market(7).companies[:2]
    answer = open_market(7).answer(f"Who is CEO of {other.symbol} and {one.symbol}, and when were they founded?")
    assert answer == (
        f"The CEO of {other.name} ({other.symbol}) is {other.ceo}. "
        f"{other.name} ({other.symbol}) was founded in {other.founded}. "
        f"The CEO of {one.name} ({one.symbol}) is {one.ceo}. "
        f"{one.name} ({one.symbol}) was founded in {one.founded}."
    )


def test_a_question_for_the_revenue_of_a_period_gets_that_period_or_nothing():
    market = open_market(7)
    symbol = market.companies[0].symbol
    old = next(year for year in market.statements(symbol, limit=9) if year.label == "FY2022")
    assert f"in FY2022 was ${old.revenue / 1e6:,.1f} million" in market.answer(f"Revenue of {symbol} in 2022?")
    assert "in Q3 2024 was" in market.answer(f"What was {symbol}'s Q3 2024 revenue?")
    assert market.answer(f"What was the revenue of {symbol} in 2012?") == ""


@pytest.mark.parametrize(
    "question",
    [
        "What was the price of {} on 2025-06-03?",
        "What was the closing price of {} on June 3?",
        "What is the price target of {}?",
        "Tell me about {}",
        "Who is the CEO of Apple?",
        "What is the weather?",
    ],
)
def test_a_question_that_the_world_cannot_answer_gets_no_answer(question):
    market = open_market(7)
    assert market.answer(question.format(market.companies[0].symbol)) == ""


@given(markets())
def test_an_answer_about_the_movers_of_the_day_names_the_first_of_the_list(market):
    up, down = market.gainers(1)[0], market.losers(1)[0]
    assert f"({up.symbol}): {up.change_percent:+.2f}%" in market.answer("Which stock is the biggest gainer today?")
    assert f"({down.symbol}): {down.change_percent:+.2f}%" in market.answer("Who is today's worst loser?")


@given(companies())
def test_a_company_is_found_by_its_symbol_its_name_and_the_start_of_either(chosen):
    market, company = chosen
    first_word = company.name.split()[0]
    assert market.search(company.symbol.lower(), 5)[0] == company
    assert market.search(company.name, 5)[0] == company
    assert market.search(first_word, 1) == (company,)
    assert company in market.search(first_word[:4].lower(), 60)
    assert company in market.search(company.symbol[:2], 60)
    assert market.search(company.symbol, 0) == ()


def test_a_search_for_an_unknown_name_finds_no_company():
    assert open_market(7).search("Apple", 10) == ()
