"""The news of a world. Every number and every name in it is looked up in the ledger, so that the news is true."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, time, timedelta
from itertools import pairwise

from mcprl.world.calendar import NOW, TODAY, TRADING_DAYS, day_in_words, moment, trading_days
from mcprl.world.companies import Business
from mcprl.world.draws import Draws
from mcprl.world.facts import Article, Period
from mcprl.world.ledger import Ledger
from mcprl.world.prices import percent_change
from mcprl.world.wording import dollars, millions, slug, up_or_down

__all__ = ["make_articles"]

_NEWS_DAYS = trading_days(TODAY - timedelta(days=60), TODAY)
_NUM_WRAPS = 10
_PUBLISHERS = ("Harbor Wire", "Ledger Daily", "Northgate Journal", "Tape and Ticker", "Quarter Post")
_AIMS = (
    "cut delivery times",
    "lower costs for customers",
    "reach smaller customers",
    "raise output by the end of the year",
)
_HOPES = (
    "demand is steady and the order book is full into next year",
    "we will invest before we hire",
    "customers ask for fewer suppliers and longer contracts",
    "our next step is to grow outside our home market",
    "we would rather be late than wrong with a new product",
)


def make_articles(ledger: Ledger) -> list[Article]:
    """All articles of the last sixty days, newest first."""
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
    publisher = draws.choice(_PUBLISHERS)
    return Article(
        title=title,
        text=text,
        publisher=publisher,
        published=published,
        url=f"https://{slug(publisher)}.example/{published:%Y/%m/%d}/{slug(title)}",
        symbols=symbols,
    )


def _some_time(draws: Draws) -> datetime:
    """Any time of the news, before now."""
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
    title = f"{business.short_name} shares {up_or_down(percent, 'rise', 'fall')} on {day_in_words(day)}"
    text = (
        f"Shares of {business.named} {up_or_down(percent, 'rose', 'fell')} on {day_in_words(day)} and closed at "
        f"{dollars(close / 100)}. The company sells {business.products[0]} and {business.products[1]}; it gave no "
        f"comment on the move."
    )
    return _article(draws, title, text, moment(day, time(16, draws.integer(10, 59))), symbol)


def _opening(ledger: Ledger, draws: Draws, business: Business) -> Article:
    symbol = business.company.symbol
    (_, before), (_, now) = ledger.daily(symbol, TRADING_DAYS[-2], TODAY)
    title = f"{business.short_name} opens at {dollars(now.open / 100)} on {day_in_words(TODAY)}"
    text = (
        f"{business.named} opened at {dollars(now.open / 100)} on {day_in_words(TODAY)}, after a previous close of "
        f"{dollars(before.close / 100)}. It belongs to the {business.company.sector} sector."
    )
    return _article(draws, title, text, moment(TODAY, time(9, draws.integer(31, 59))), symbol)


def _product(draws: Draws, business: Business) -> Article:
    product = draws.choice(business.products).removeprefix("a ")
    title = f"{business.short_name} invests in {product}"
    text = (
        f"{business.named}, based in {business.company.city}, will invest in {product} for {business.customers}. The "
        f"aim is to {draws.choice(_AIMS)}. The company has {business.company.employees:,} employees."
    )
    return _article(draws, title, text, _some_time(draws), business.company.symbol)


def _interview(draws: Draws, business: Business) -> Article:
    company, hope = business.company, draws.choice(_HOPES)
    title = f"{business.short_name} CEO {company.ceo}: {hope}"
    text = (
        f"{company.ceo}, chief executive officer of {business.named}, said in an interview: "
        f'"{hope[0].upper()}{hope[1:]}." The company was founded in {company.founded} and belongs to the industry '
        f"{company.industry}."
    )
    return _article(draws, title, text, _some_time(draws), company.symbol)


def _agreement(draws: Draws, business: Business, other: Business) -> Article:
    title = f"{business.short_name} and {other.short_name} sign a supply agreement"
    text = (
        f"{business.named} and {other.named} signed a supply agreement over three years. {business.short_name} "
        f"sells {business.products[0]}; {other.short_name}, led by {other.company.ceo}, sells {other.products[0]}."
    )
    return _article(draws, title, text, _some_time(draws), business.company.symbol, other.company.symbol)


def _market_wraps(ledger: Ledger) -> Iterator[Article]:
    """After each of the last full trading days: which stock rose most and which fell most."""
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
