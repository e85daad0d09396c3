"""The web pages of a world: one for each company, sector and article, and pages about other topics."""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from itertools import pairwise

from mcprl_market.world.companies import COUNTRIES, SECTORS, WORDS, Business
from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Article, Company, Document, Period
from mcprl_market.world.ledger import Ledger
from mcprl_market.world.prices import NOW, TODAY, TRADING_DAYS, day_in_words, moment, percent_change, trading_days


def dollars(amount: float) -> str:
    """Format a price: dollars(1234.5) is "$1,234.50"."""
    return f"${amount:,.2f}"


def millions(amount: int) -> str:
    """Format an amount of a statement: millions(4_213_400_000) is "$4,213.4 million". A loss has no sign."""
    return f"${abs(amount) // 100_000 / 10:,.1f} million"


def up_or_down(percent: float, up: str, down: str) -> str:
    """up_or_down(-1.5, "rise", "fall") is "fall 1.50%"."""
    return f"{up if percent >= 0 else down} {abs(percent):.2f}%"


def slug(text: str) -> str:
    """Format a string for URLs: slug("Valdixen Systems Inc.") is "valdixen-systems-inc"."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


EXPLAINERS: Sequence[tuple[str, str]] = WORDS["explainers"]
OTHER_PAGES: Sequence[tuple[str, str]] = WORDS["other_pages"]
PUBLISHERS: Sequence[str] = WORDS["publishers"]
AIMS: Sequence[str] = WORDS["aims"]
HOPES: Sequence[str] = WORDS["hopes"]

_NEWS_DAYS = trading_days(TODAY - timedelta(days=60), TODAY)
_NUM_WRAPS = 10


def make_articles(ledger: Ledger) -> list[Article]:
    """Return all articles of the last sixty days, newest first."""
    articles = list(_market_wraps(ledger))
    for number, business in enumerate(ledger.businesses):
        draws = Draws(ledger.seed, "news", business.company.symbol)
        others = ledger.businesses[:number] + ledger.businesses[number + 1 :]
        articles += [
            _results(ledger, draws, business),
            _largest_move(ledger, draws, business),
            _product(draws, business),
            _interview(draws, business),
        ]
        if draws.chance(0.4):
            articles.append(_agreement(draws, business, draws.choice(others)))
        if draws.chance(0.25):
            articles.append(_opening(ledger, draws, business))
    return sorted(articles, key=lambda article: (-article.published.timestamp(), article.url))


def _article(draws: Draws, title: str, text: str, published: datetime, *symbols: str) -> Article:
    publisher = draws.choice(PUBLISHERS)
    return Article(
        title=title,
        text=text,
        publisher=publisher,
        published=published,
        url=f"https://{slug(publisher)}.example/{published:%Y/%m/%d}/{slug(title)}",
        symbols=symbols,
    )


def _some_time(draws: Draws) -> datetime:
    """Return a random time of the news period, before now."""
    day = draws.choice(_NEWS_DAYS)
    return moment(day, time(draws.integer(7, NOW.hour - 1 if day == TODAY else 18), draws.integer(0, 59)))


def _results(ledger: Ledger, draws: Draws, business: Business) -> Article:
    symbol = business.company.symbol
    last, *_, year_ago = ledger.reports(symbol, Period.QUARTERLY)[:5]
    year, before = ledger.reports(symbol)[:2]
    of_quarter = "income" if last.net_income >= 0 else "loss"
    of_year = "income" if year.net_income >= 0 else "loss"
    title = f"{business.short_name} reports {last.label} revenue of {millions(last.revenue)}"
    text = (
        f"{business.named} reported revenue of {millions(last.revenue)} for {last.label}, after "
        f"{millions(year_ago.revenue)} in {year_ago.label}. The net {of_quarter} of the quarter was "
        f"{millions(last.net_income)}, or {dollars(abs(last.eps))} a share. For {year.label} as a whole, revenue came "
        f"to {millions(year.revenue)}, after {millions(before.revenue)} in {before.label}, and the net {of_year} to "
        f"{millions(year.net_income)}."
    )
    day = draws.choice(trading_days(last.end + timedelta(days=29), last.end + timedelta(days=50)))
    return _article(draws, title, text, moment(day, time(16, draws.integer(5, 45))), symbol)


def _largest_move(ledger: Ledger, draws: Draws, business: Business) -> Article:
    symbol = business.company.symbol
    before_news = TRADING_DAYS[TRADING_DAYS.index(_NEWS_DAYS[0]) - 1]
    moves = [
        (percent_change(now.close, before.close), day, now.close)
        for (_, before), (day, now) in pairwise(ledger.daily(symbol, before_news, TRADING_DAYS[-2]))
    ]
    percent, day, close = max(moves, key=lambda move: abs(move[0]))
    moved = {"now": up_or_down(percent, "rise", "fall"), "then": up_or_down(percent, "rose", "fell")}
    title, text = _worded("move", business, day=day_in_words(day), close=dollars(close / 100), **moved)
    return _article(draws, title, text, moment(day, time(16, draws.integer(10, 59))), symbol)


def _opening(ledger: Ledger, draws: Draws, business: Business) -> Article:
    (_, before), (_, now) = ledger.daily(business.company.symbol, TRADING_DAYS[-2], TODAY)
    prices = {"opening": dollars(now.open / 100), "before": dollars(before.close / 100)}
    title, text = _worded("opening", business, day=day_in_words(TODAY), **prices)
    return _article(draws, title, text, moment(TODAY, time(9, draws.integer(31, 59))), business.company.symbol)


def _product(draws: Draws, business: Business) -> Article:
    product = draws.choice(business.products).removeprefix("a ")
    title, text = _worded("product", business, product=product, aim=draws.choice(AIMS))
    return _article(draws, title, text, _some_time(draws), business.company.symbol)


def _interview(draws: Draws, business: Business) -> Article:
    hope = draws.choice(HOPES)
    title, text = _worded("interview", business, hope=hope, said=f"{hope[0].upper()}{hope[1:]}")
    return _article(draws, title, text, _some_time(draws), business.company.symbol)


def _agreement(draws: Draws, business: Business, other: Business) -> Article:
    title, text = _worded("agreement", business, other=other)
    return _article(draws, title, text, _some_time(draws), business.company.symbol, other.company.symbol)


def _worded(kind: str, business: Business, **facts: str | Business) -> tuple[str, str]:
    """Return the title and the text of a kind of article about a business."""
    title, text = (wording.format(of=business, **facts) for wording in WORDS["articles"][kind])
    return title, text


def _market_wraps(ledger: Ledger) -> Iterator[Article]:
    """Yield an article for each of the last full trading days: which stock rose most and which fell most."""
    draws = Draws(ledger.seed, "news", "market")
    names = {company.symbol: f"{company.name} ({company.symbol})" for company in ledger.companies}
    first = TRADING_DAYS[-2 - _NUM_WRAPS]
    of_stocks = [(symbol, ledger.daily(symbol, first, TRADING_DAYS[-2])) for symbol in names]
    for number in range(_NUM_WRAPS):
        moves = [
            (percent_change(prices[number + 1][1].close, prices[number][1].close), symbol)
            for symbol, prices in of_stocks
        ]
        worst, loser = min(moves, key=lambda move: (move[0], move[1]))
        best, gainer = min(moves, key=lambda move: (-move[0], move[1]))
        day = of_stocks[0][1][number + 1][0]
        title = f"Market wrap for {day_in_words(day)}: {gainer} leads, {loser} trails"
        text = (
            f"On {day_in_words(day)} the best stock was {names[gainer]} with a change of {best:+.2f}%, and the worst "
            f"was {names[loser]} with a change of {worst:+.2f}%."
        )
        yield _article(draws, title, text, moment(day, time(17, draws.integer(0, 30))), gainer, loser)


_MAX_WORDS = 32
# A relevance of this size gets a score of one half.
_HALF = 5.0
# Words in questions that say nothing about the subject.
_EMPTY_WORDS = (
    "a an and are as at be by did do does for from has have how in is it its me of on or s so than that the their they "
    "this to was were what when where which who whom why will with you your"
)


def largest_first(ledger: Ledger, sector: str) -> list[tuple[Company, int]]:
    """Return the companies of a sector with their market capitalizations, largest first; ties by symbol."""
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


class PageIndex:
    """Full-text search over pages.

    >>> index = PageIndex([Document(title="Apple trees", url="https://a.example", content="Prune in late winter.")])
    >>> [page.title for page in index.find("pruning", 5)]
    ['Apple trees']
    """

    def __init__(self, pages: Iterable[Document]) -> None:
        self.pages = tuple(pages)
        # Tools run in threads. The lock makes one connection safe for all threads, however SQLite was compiled.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.execute(
            "CREATE VIRTUAL TABLE pages USING fts5 (title, content, url UNINDEXED, tokenize = 'porter unicode61')"
        )
        self._connection.executemany(
            "INSERT INTO pages VALUES (?, ?, ?)", [(page.title, page.content, page.url) for page in self.pages]
        )

    def find(self, query: str, limit: int) -> tuple[Document, ...]:
        """Return the pages that match a query best. A page must contain one of its words.

        Sorted by score, then in the order of the pages. Scores are rounded before they are compared, so that the order
        does not depend on the last digit of a machine's logarithm.
        """
        skipped = _EMPTY_WORDS.split()
        words = [word for word in dict.fromkeys(re.findall(r"[^\W_]+", query.lower())) if word not in skipped]
        if not words or limit <= 0:
            return ()
        # In quotes, a word is never an operator of the query language.
        match = " OR ".join(f'"{word}"' for word in words[:_MAX_WORDS])
        with self._lock:
            rows: list[tuple[int, float]] = self._connection.execute(
                "SELECT rowid, -bm25(pages, 1.5, 1.0) FROM pages WHERE pages MATCH ?", (match,)
            ).fetchall()
        scored = sorted((-max(0.0001, round(share / (share + _HALF), 4)), number) for number, share in rows)
        return tuple(replace(self.pages[number - 1], score=-score) for score, number in scored[:limit])
