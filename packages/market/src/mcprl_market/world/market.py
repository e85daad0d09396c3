"""The offline market of a seed: the data source of the tools for market data and web search."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache

from mcprl_market.world.companies import COUNTRIES, SECTORS, Business
from mcprl_market.world.facts import Article, Company, Document, MarketStatus, Period, Quote
from mcprl_market.world.ledger import Ledger
from mcprl_market.world.prices import NOW, TODAY, day_in_words
from mcprl_market.world.texts import PageIndex, dollars, largest_first, make_articles, make_pages, millions, up_or_down

_MAX_COMPANIES = 3
# Questions about prices at another time than now get no answer.
_OTHER_TIME = re.compile(
    r"\d{4}-\d\d-\d\d|\bon \w+ \d|yesterday|\blast\b|\bclos(e|ed|ing)\b|\bopen|\bhigh|\blow|average|target|\bwas\b"
)


def _price(ledger: Ledger, business: Business, question: str) -> str:
    quote = ledger.quotes[business.company.symbol]
    if re.search(r"previous clos|clos\w* yesterday|yesterday\S* clos", question):
        return f"The previous close of {business.named} was {dollars(quote.previous_close)}."
    if _OTHER_TIME.search(question):
        return ""
    return (
        f"{business.named} trades at {dollars(quote.price)}, {up_or_down(quote.change_percent, 'up', 'down')} on the "
        f"day, on {day_in_words(NOW.date())} at {NOW:%H:%M} in New York."
    )


def _market_cap(ledger: Ledger, business: Business, _: str) -> str:
    return f"The market capitalization of {business.named} is ${ledger.quotes[business.company.symbol].market_cap:,}."


def _ratio(ledger: Ledger, business: Business, _: str) -> str:
    pe = ledger.quotes[business.company.symbol].pe
    if pe is None:
        return f"{business.named} has no P/E ratio, since it made no profit in the last four quarters."
    return f"The P/E ratio of {business.named} is {pe:.2f}."


def _revenue(ledger: Ledger, business: Business, question: str) -> str:
    """Answer a question about revenue in a given period, by default the newest; "" if there is no such period."""
    period = Period.QUARTERLY if re.search(r"\bq[1-4]\b|\bquarter", question) else Period.ANNUAL
    named = re.findall(r"\bq[1-4]\b|20\d\d", question)
    for statement in ledger.reports(business.company.symbol, period):
        if all(part in statement.label.lower() for part in named):
            return f"The revenue of {business.named} in {statement.label} was {millions(statement.revenue)}."
    return ""


def _profile(wording: str) -> Callable[[Ledger, Business, str], str]:
    """Return a function that fills the company's fields into a sentence."""

    def sentence(_ledger: Ledger, business: Business, _question: str) -> str:
        return wording.format(named=business.named, in_country=COUNTRIES[business.company.country], of=business.company)

    return sentence


# Patterns in questions about a company → functions that answer them. Several may match.
_ABOUT_A_COMPANY: Mapping[str, Callable[[Ledger, Business, str], str]] = {
    r"\bceo\b|chief executive|\bwho (runs|leads|heads)\b": _profile("The CEO of {named} is {of.ceo}."),
    r"\bfound(ed|ing)\b|\bestablished\b": _profile("{named} was founded in {of.founded}."),
    r"\bbased\b|headquarter|\blocated\b|\bwhere is\b": _profile(
        "{named} has its headquarters in {of.city}, {in_country}."
    ),
    r"\bemployees?\b|\bemploys?\b|\bstaff\b|workforce|headcount|how many people": _profile(
        "{named} has {of.employees:,} employees."
    ),
    r"\bsector\b": _profile("{named} is in the {of.sector} sector."),
    r"\bindustry\b": _profile("The industry of {named} is {of.industry}."),
    r"\bticker\b|\bsymbol\b": _profile("The ticker symbol of {of.name} is {of.symbol}."),
    r"\bprice\b(?!.to.earnings)|\bquote\b|\btrad(es|ing) at\b|previous close": _price,
    r"market.?cap|market value": _market_cap,
    r"\bp/?e\b|price.to.earnings": _ratio,
    r"\brevenues?\b": _revenue,
}


def answer_question(ledger: Ledger, query: str) -> str:
    """Return one sentence per fact that the question asks for; "" if the world knows none of them."""
    question = query.lower()
    names = {
        name.lower(): business for business in ledger.businesses for name in (business.company.symbol, business.stem)
    }
    mentioned = {
        business.company.symbol: business
        for word in re.findall(r"[^\W_]+", question)
        if (business := names.get(word)) is not None
    }
    if not mentioned:
        return _about_the_market(ledger, question)
    asked = [sentence for pattern, sentence in _ABOUT_A_COMPANY.items() if re.search(pattern, question)]
    businesses = list(mentioned.values())[:_MAX_COMPANIES]
    sentences = [sentence(ledger, business, question) for business in businesses for sentence in asked]
    return " ".join(filter(None, sentences))


def _about_the_market(ledger: Ledger, question: str) -> str:
    if re.search(r"\bgainer|gained (the )?most", question):
        return _mover("up", ledger.gainers(1))
    if re.search(r"\bloser|lost (the )?most", question):
        return _mover("down", ledger.losers(1))
    sector = next((sector.name for sector in SECTORS if sector.name.lower() in question), None)
    if sector and re.search(r"\blargest\b|\bbiggest\b", question):
        company, size = largest_first(ledger, sector)[0]
        return (
            f"The largest company of the {sector} sector by market capitalization is {company.name} ({company.symbol}) "
            f"with ${size:,}."
        )
    return ""


def _mover(direction: str, movers: tuple[Quote, ...]) -> str:
    if not movers:
        return f"No stock is {direction} today."
    (quote,) = movers
    return f"The stock that is {direction} most today is {quote.name} ({quote.symbol}): {quote.change_percent:+.2f}%."


_building = threading.Lock()


class Market(Ledger):
    """The world generated from a seed: its numbers, and the texts about them.

    Market(7) has companies, prices up to `now` (a fixed Friday afternoon in New York), statements, news and web pages.
    It is the same on every machine. If two tools state the same fact, they agree.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.articles = tuple(make_articles(self))
        self._index = PageIndex(make_pages(self, self.articles))

    @property
    def pages(self) -> tuple[Document, ...]:
        """The pages that web search can find."""
        return self._index.pages

    @property
    def name(self) -> str:
        """The world's name in tasks, such as "market-7"."""
        return f"market-{self.seed}"

    @property
    def now(self) -> datetime:
        return NOW

    @property
    def today(self) -> date:
        return TODAY

    def search(self, query: str, limit: int) -> tuple[Company, ...]:
        """Return companies, best match first. Each word of the query must start a word of the symbol or name."""
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
        """Return the articles that name any of the symbols, or all articles for None; newest first."""
        known = None if symbols is None else {symbol.strip().upper() for symbol in symbols}
        found = [made for made in self.articles if known is None or not known.isdisjoint(made.symbols)]
        return tuple(found[: max(0, limit)])

    def status(self) -> MarketStatus:
        return MarketStatus(now=NOW, session="open", exchanges=(("NASDAQ", "open"), ("NYSE", "open")))

    def documents(self, query: str, limit: int) -> tuple[Document, ...]:
        """Return the web pages that match a query best, best first."""
        return self._index.find(query, limit)

    def answer(self, query: str) -> str:
        """Return a short answer to a question, or "" if the world has none."""
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
    """Return the market of a seed. It is built at the first call in this process."""
    # Two threads that call this at the same time share one market instead of building two.
    with _building:
        return _kept_market(seed)
