"""The web of a world: a page for each company, each sector and each article, and pages about other things."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mcprl.world.calendar import TODAY, day_in_words
from mcprl.world.companies import COUNTRIES, Business
from mcprl.world.explainers import EXPLAINERS, OTHER_PAGES
from mcprl.world.facts import Article, Company, Document
from mcprl.world.ledger import Ledger
from mcprl.world.sectors import SECTORS
from mcprl.world.wording import millions, slug

__all__ = ["find_pages", "largest_first", "make_pages"]

_MAX_WORDS = 32
# A relevance of this size gets the score one half.
_HALF = 5.0
# Words of questions that say nothing about what is asked for.
_EMPTY_WORDS = (
    "a an and are as at be by did do does for from has have how in is it its me of on or s so than that the their they "
    "this to was were what when where which who whom why will with you your"
)


def largest_first(ledger: Ledger, sector: str) -> list[tuple[Company, int]]:
    """The companies of a sector with their market capitalizations, the largest first; ties by symbol."""
    sizes = [
        (company, ledger.quotes[company.symbol].market_cap or 0)
        for company in ledger.companies
        if company.sector == sector
    ]
    return sorted(sizes, key=lambda size: (-size[1], size[0].symbol))


def make_pages(ledger: Ledger, articles: Iterable[Article]) -> Iterator[Document]:
    for business in ledger.businesses:
        yield _company_page(ledger, business)
    for sector in SECTORS:
        yield _sector_page(ledger, sector.name)
    for article in articles:
        content = f"{article.publisher}, {day_in_words(article.published.date())}. {article.text}"
        yield Document(title=article.title, url=article.url, content=content)
    for title, content in EXPLAINERS:
        yield Document(title=title, url=f"https://finance-basics.example/{slug(title)}", content=content)
    for title, content in OTHER_PAGES:
        yield Document(title=title, url=f"https://almanac.example/{slug(title)}", content=content)


def _company_page(ledger: Ledger, business: Business) -> Document:
    company = business.company
    name = business.short_name
    year = ledger.reports(company.symbol)[0]
    content = (
        f"{company.name} ({company.exchange}: {company.symbol}) is a company in the {company.sector} sector; its "
        f"industry is {company.industry}. {name} was founded in {company.founded} and has its headquarters in "
        f"{company.city}, {COUNTRIES[company.country]}. The chief executive officer (CEO) of {name} is {company.ceo}. "
        f"{name} has {company.employees:,} employees. {name} sells {business.products[0]} and {business.products[1]} "
        f"to {business.customers}. In {year.label} its revenue was {millions(year.revenue)}. It has {company.shares:,} "
        f"shares. Website: {company.website}"
    )
    return Document(
        title=f"{company.name} ({company.symbol})",
        url=f"https://encyclopedia.example/company/{slug(name)}",
        content=content,
    )


def _sector_page(ledger: Ledger, sector: str) -> Document:
    ranked = largest_first(ledger, sector)
    largest, size = ranked[0]
    names = ", ".join(f"{company.name} ({company.symbol})" for company, _ in ranked)
    content = (
        f"The {sector} sector has {len(ranked)} listed companies. On {day_in_words(TODAY)} the largest by market "
        f"capitalization is {largest.name} ({largest.symbol}) with ${size:,}. From the largest to the "
        f"smallest: {names}."
    )
    return Document(
        title=f"{sector} sector: companies", url=f"https://encyclopedia.example/sector/{slug(sector)}", content=content
    )


def find_pages(ledger: Ledger, query: str, limit: int) -> tuple[Document, ...]:
    """The pages that fit a query best, whatever its text; a page needs to hold one of its words.

    Their order is that of the scores, then of the pages. Scores are rounded before they are compared, so that the last
    digit of a machine's logarithm never decides.
    """
    skipped = _EMPTY_WORDS.split()
    words = [word for word in dict.fromkeys(re.findall(r"[^\W_]+", query.lower())) if word not in skipped]
    if not words or limit <= 0:
        return ()
    # In quotes a word is never an operator of the query language.
    match = " OR ".join(f'"{word}"' for word in words[:_MAX_WORDS])
    rows = ledger.database.rows(
        "SELECT rowid, title, url, content, -bm25(pages, 1.5, 1.0) FROM pages WHERE pages MATCH ?", match
    )
    scored = sorted((-_score(relevance), number, *page) for number, *page, relevance in rows)
    return tuple(
        Document(title=title, url=url, content=content, score=-score)
        for score, _, title, url, content in scored[:limit]
    )


def _score(relevance: float) -> float:
    return max(0.0001, round(relevance / (relevance + _HALF), 4))
