"""Tasks that one call answers: prices, companies, news, the web, the chat. Easy, or medium if a price is needed too."""

from __future__ import annotations

import re
from collections.abc import Callable

from mcprl_market.generation.drafts import (
    EASY,
    MEDIUM,
    OF_BAR,
    Draft,
    Material,
    Step,
    asked,
    call,
    choice,
    family,
    named,
    python,
)
from mcprl_market.world.facts import Period, Quote, Statement

_OF_QUOTE: tuple[tuple[str, Callable[[Quote], float]], ...] = (
    ("highest price of today", lambda quote: quote.day_high or 0.0),
    ("lowest price of today", lambda quote: quote.day_low or 0.0),
)
_OF_STATEMENT: tuple[tuple[str, Callable[[Statement], int]], ...] = (
    ("revenue", lambda statement: statement.revenue),
    ("gross profit", lambda statement: statement.gross_profit),
    ("operating income", lambda statement: statement.operating_income),
    ("net income", lambda statement: statement.net_income),
)
_PERIODS = ((Period.ANNUAL, "last fiscal year"), (Period.QUARTERLY, "latest quarter"))
_ARTICLES = ("newest", "second newest", "third newest")
_MESSAGES = ("latest", "second latest", "third latest", "fourth latest")


def _headline(material: Material, tool: str, argument: str) -> Draft | None:
    company, place = material.company(), material.draws.integer(0, len(_ARTICLES) - 1)
    titles = [article.title for article in material.market.news([company.symbol], 10)]
    if len(titles) <= place or titles.count(titles[place]) > 1:
        return None
    steps = (Step(tool=tool, matters={argument: company.symbol}),)
    answer = choice(titles[place], titles)
    says = f"The headline is: {titles[place]}"
    return Draft((company.symbol, _ARTICLES[place]), named(company, place=_ARTICLES[place]), steps, answer, says)


@family(EASY)
def compound(material: Material) -> Draft:
    amount = material.draws.integer(12, 98) * 250
    rate = material.draws.integer(21, 89) / 10
    years = material.draws.integer(4, 19)
    value = amount * (1 + rate / 100) ** years
    slots = {"amount": str(amount), "rate": str(rate), "years": str(years)}
    steps = (python(f"{amount} * (1 + {rate} / 100) ** {years}"),)
    return Draft((str(amount), str(rate), str(years)), slots, steps, asked(value), f"It grows to ${value:.2f}.")


@family(EASY)
def price(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    steps = (call("fmp_get_quote", symbol=company.symbol),)
    answer = asked(quote.price)
    return Draft((company.symbol,), named(company), steps, answer, f"{company.symbol} trades at ${quote.price:.2f}.")


@family(EASY)
def day_range(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(_OF_QUOTE)
    value = read(material.quote(company))
    steps = (call("fmp_get_quote", symbol=company.symbol),)
    says = f"{company.symbol}: the {what} is ${value:.2f}."
    return Draft((company.symbol, what), named(company, what=what), steps, asked(value), says)


@family(EASY)
def change_percent(material: Material) -> Draft:
    company = material.company()
    change = material.quote(company).change_percent
    steps = (call("fmp_get_change_percent", symbol=company.symbol),)
    says = f"{company.symbol} has moved by {change:+.2f}% today."
    return Draft((company.symbol,), named(company), steps, asked(change), says)


@family(EASY)
def previous_close(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    steps = (call("fmp_get_previous_close", symbol=company.symbol),)
    return Draft((company.symbol,), named(company), steps, asked(close), f"{company.symbol} closed at ${close:.2f}.")


@family(EASY)
def last_session(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(OF_BAR)
    bar = material.market.previous_close(company.symbol)
    assert bar is not None  # every company of the world is traded
    steps = (call("polygon_get_previous_close", ticker=company.symbol),)
    says = f"The {what} of {company.symbol} was ${read(bar):.2f}."
    return Draft((company.symbol, what), named(company, what=what), steps, asked(read(bar)), says)


@family(EASY)
def chief(material: Material) -> Draft:
    company = material.company()
    steps = (call("fmp_get_company_profile", symbol=company.symbol),)
    answer = choice(company.ceo, (other.ceo for other in material.market.companies))
    return Draft((company.symbol,), named(company), steps, answer, f"The CEO of {company.symbol} is {company.ceo}.")


@family(EASY)
def staff(material: Material) -> Draft:
    company = material.company()
    assert company.employees is not None  # every company of the world has one
    steps = (call("polygon_get_ticker_details", ticker=company.symbol),)
    answer = asked(company.employees, 0)
    return Draft((company.symbol,), named(company), steps, answer, f"{company.name} has {company.employees} employees.")


@family(EASY)
def listed_name(material: Material) -> Draft:
    company = material.company()
    names = (other.name.removesuffix(".") for other in material.market.companies)
    steps = (call("fmp_search_ticker", query=company.symbol),)
    answer = choice(company.name.removesuffix("."), names)
    says = f"{company.symbol} is the ticker of {company.name}"
    return Draft((company.symbol,), {"symbol": company.symbol}, steps, answer, says)


@family(EASY)
def earnings(material: Material) -> Draft:
    company, (what, read), (period, when) = material.company(), material.one(_OF_STATEMENT), material.one(_PERIODS)
    value = read(material.statements(company, period)[0])
    # Annual is the tool's default, so a call without the period is right, too.
    matters = {"symbol": company.symbol} | ({} if period is Period.ANNUAL else {"period": period.value})
    steps = (Step(tool="fmp_get_income_statement", matters=matters),)
    says = f"The {what} of {company.symbol} in its {when} was ${value}."
    return Draft((company.symbol, what, when), named(company, what=what, when=when), steps, asked(value, 0), says)


@family(EASY)
def headline(material: Material) -> Draft | None:
    return _headline(material, "fmp_get_stock_news", "tickers")


@family(EASY)
def polygon_headline(material: Material) -> Draft | None:
    return _headline(material, "polygon_get_news", "ticker")


@family(EASY)
def home_city(material: Material) -> Draft:
    company = material.company()
    steps = (call("tavily_qna_search", free={"query": f"Where is {company.name} based?"}),)
    answer = choice(company.city, (other.city for other in material.market.companies))
    says = f"{company.name} has its headquarters in {company.city}."
    return Draft((company.symbol,), named(company), steps, answer, says)


@family(EASY)
def founding_year(material: Material) -> Draft:
    company = material.company()
    assert company.founded is not None  # every company of the world has one
    steps = (call("tavily_search", free={"query": f"{company.name} company profile", "max_results": 1}),)
    answer = asked(company.founded, 0)
    return Draft((company.symbol,), named(company), steps, answer, f"{company.name} was founded in {company.founded}.")


@family(EASY)
def channel_id(material: Material) -> Draft:
    channel = material.one(material.channels)
    steps = (call("list_slack_channels"),)
    answer = choice(channel.id, (other.id for other in material.rooms))
    return Draft((channel.name,), {"room": channel.name}, steps, answer, f"The id of #{channel.name} is {channel.id}.")


@family(EASY)
def author(material: Material) -> Draft:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_MESSAGES) - 1)
    messages = material.workspace.history(channel.id, 100)
    people = {message.user for room in material.rooms for message in material.workspace.history(room.id, 100)}
    author = messages[place].user
    entities = (channel.name, _MESSAGES[place])
    steps = (call("get_slack_channel_history", free={"channel_id": channel.id}),)
    says = f"The {_MESSAGES[place]} message in #{channel.name} is by {author}."
    return Draft(entities, {"room": channel.name, "place": _MESSAGES[place]}, steps, choice(author, people), says)


@family(MEDIUM)
def mentioned_price(material: Material) -> Draft | None:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_MESSAGES) - 1)
    text = material.workspace.history(channel.id, 100)[place].text
    mentioned = {word for word in re.findall(r"\w+", text) if material.market.company(word) is not None}
    if len(mentioned) != 1:
        return None
    symbol = mentioned.pop()
    quote = material.quote(symbol)
    entities = (channel.name, _MESSAGES[place])
    steps = (call("get_slack_channel_history", free={"channel_id": channel.id}), call("fmp_get_quote", symbol=symbol))
    says = f"The message is about {symbol}, which trades at ${quote.price:.2f}."
    return Draft(entities, {"room": channel.name, "place": _MESSAGES[place]}, steps, asked(quote.price), says)


@family(MEDIUM)
def partner_price(material: Material) -> Draft | None:
    company = material.company()
    deals = [article for article in material.market.news([company.symbol], 10) if "supply agreement" in article.title]
    if len(deals) != 1:
        return None
    (partner,) = (symbol for symbol in deals[0].symbols if symbol != company.symbol)
    quote = material.quote(partner)
    steps = (call("polygon_get_news", ticker=company.symbol), call("fmp_get_quote", symbol=partner))
    says = f"{company.symbol} signed with {partner}, which trades at ${quote.price:.2f}."
    return Draft((company.symbol,), named(company), steps, asked(quote.price), says)
