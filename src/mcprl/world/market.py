"""The offline market: everything that the tools for market data and web search can be asked, out of one seed."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache

from mcprl.world.answers import answer_question
from mcprl.world.calendar import NOW, TODAY
from mcprl.world.corpus import find_pages, make_pages
from mcprl.world.facts import Article, Company, Document, MarketStatus
from mcprl.world.ledger import Ledger
from mcprl.world.news import make_articles

__all__ = ["Market", "open_market"]

_building = threading.Lock()


class Market(Ledger):
    """The world of a seed: its counted facts, and what is written about them.

    Market(7) has companies, prices up to `now` (a fixed Friday afternoon in New York), statements, news and web pages,
    and is the same on every machine. Any two of its answers that state the same fact agree.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        articles = make_articles(self)
        self.database.write(
            "INSERT INTO articles VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (
                    number,
                    " ".join(made.symbols),
                    made.title,
                    made.text,
                    made.publisher,
                    made.published.isoformat(),
                    made.url,
                )
                for number, made in enumerate(articles)
            ),
        )
        self.database.write(
            "INSERT INTO mentions VALUES (?, ?)",
            ((symbol, number) for number, made in enumerate(articles) for symbol in made.symbols),
        )
        self.database.write(
            "INSERT INTO pages (title, content, url) VALUES (?, ?, ?)",
            ((page.title, page.content, page.url) for page in make_pages(self, articles)),
        )

    @property
    def name(self) -> str:
        """Such as "market-7": what a task names its world by."""
        return f"market-{self.seed}"

    @property
    def now(self) -> datetime:
        return NOW

    @property
    def today(self) -> date:
        return TODAY

    def search(self, query: str, limit: int) -> tuple[Company, ...]:
        """Companies whose symbol or name has a word that starts with each word of the query, the closest first."""
        words = re.findall(r"[^\W_]+", query.lower())
        if not words:
            return ()
        found = [
            (_distance(company, words), company.symbol, company)
            for company in self.companies
            if all(any(part.startswith(word) for part in _words_of(company)) for word in words)
        ]
        return tuple(company for _, _, company in sorted(found, key=lambda match: match[:2]))[: max(0, limit)]

    def news(self, symbols: Sequence[str] | None, limit: int) -> tuple[Article, ...]:
        """Articles that name any of the symbols, or all articles for None; newest first."""
        if symbols is None:
            rows = self.database.rows("SELECT * FROM articles ORDER BY id")
        else:
            known = sorted({company.symbol for symbol in symbols if (company := self.company(symbol))})
            marks = ", ".join("?" for _ in known)
            rows = self.database.rows(
                "SELECT * FROM articles WHERE id IN "
                f"(SELECT article FROM mentions WHERE symbol IN ({marks})) ORDER BY id",
                *known,
            )
        return tuple(
            Article(
                title=title,
                text=text,
                publisher=publisher,
                published=datetime.fromisoformat(published).astimezone(NOW.tzinfo),
                url=url,
                symbols=tuple(named.split()),
            )
            for _, named, title, text, publisher, published, url in rows[: max(0, limit)]
        )

    def status(self) -> MarketStatus:
        return MarketStatus(now=NOW, session="open", exchanges=(("NASDAQ", "open"), ("NYSE", "open")))

    def documents(self, query: str, limit: int) -> tuple[Document, ...]:
        """The web pages that fit a query best, the best first."""
        return find_pages(self, query, limit)

    def answer(self, query: str) -> str:
        """A short answer to a question, or "" where the world knows none."""
        return answer_question(self, query)


def _words_of(company: Company) -> list[str]:
    return [company.symbol.lower(), *re.findall(r"[^\W_]+", company.name.lower())]


def _distance(company: Company, words: Sequence[str]) -> int:
    symbol, *name = _words_of(company)
    if words == [symbol]:
        return 0
    if words == name[: len(words)]:
        return 1
    return 2 if symbol.startswith(words[0]) else 3


@lru_cache(maxsize=16)
def _kept_market(seed: int) -> Market:
    return Market(seed)


def open_market(seed: int) -> Market:
    """The market of a seed, built at the first call in this process."""
    # Two threads that ask at once wait for one market rather than build two.
    with _building:
        return _kept_market(seed)
