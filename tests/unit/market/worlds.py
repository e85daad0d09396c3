"""Worlds for tests: a few seeds, companies of theirs, and a digest of all that a world states."""

from __future__ import annotations

import hashlib
import sys
from datetime import date

from hypothesis import strategies as st

from mcprl_market.world import Market, open_market, open_workspace
from mcprl_market.world.facts import Frequency, Period

SEEDS = (7, -3)


def markets() -> st.SearchStrategy[Market]:
    return st.sampled_from(SEEDS).map(open_market)


@st.composite
def companies(draw):
    """A market and one of its companies."""
    market = draw(markets())
    return market, draw(st.sampled_from(market.companies))


def cents(amount: float) -> int:
    """Exactly how many cents an amount is; anything finer fails."""
    whole = round(amount * 100)
    assert amount == whole / 100
    return whole


def _prices(market: Market):
    for company in market.companies:
        for day, prices in market.daily(company.symbol, date.min, date.max):
            yield (company.symbol, day.isoformat(), *prices)


def _statements(market: Market):
    for company in market.companies:
        for period in (Period.ANNUAL, Period.QUARTERLY):
            for made in reversed(market.reports(company.symbol, period)):
                figures = (made.revenue, made.gross_profit, made.operating_income, made.net_income, made.eps)
                yield (made.symbol, period.value, made.end.isoformat(), made.label, *figures)


def _articles(market: Market):
    for number, made in enumerate(market.articles):
        published = made.published.isoformat()
        yield (number, " ".join(made.symbols), made.title, made.text, made.publisher, published, made.url)
    yield from sorted((symbol, number) for number, made in enumerate(market.articles) for symbol in made.symbols)


def _pages(market: Market):
    return ((page.title, page.content, page.url) for page in market.pages)


def world_digest(seed: int) -> str:
    """A digest of the companies, prices, statements, texts, some minutes and the chat of a world."""
    market, workspace = open_market(seed), open_workspace(seed)
    digest = hashlib.sha256()
    for row in (*_prices(market), *_statements(market), *_articles(market), *_pages(market)):
        digest.update(repr(row).encode())
    for company in market.companies:
        digest.update(repr(company).encode())
        for bar in market.bars(company.symbol, market.today, market.today, Frequency.MINUTE):
            digest.update(repr((bar.start.isoformat(), bar.open, bar.high, bar.low, bar.close, bar.volume)).encode())
    for channel in workspace.channels():
        digest.update(repr((channel, workspace.history(channel.id, 99))).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(world_digest(int(sys.argv[1])))
