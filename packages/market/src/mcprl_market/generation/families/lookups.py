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
    return Draft(
        entities=(company.symbol, _ARTICLES[place]),
        slots=named(company, place=_ARTICLES[place]),
        steps=(Step(tool=tool, matters={argument: company.symbol}),),
        answer=choice(titles[place], titles),
        says=f"The headline is: {titles[place]}",
    )


@family(
    EASY,
    "With Python, compute what ${amount} grows to in {years} years at {rate}% a year, compounded yearly. Two decimals.",
    "I put ${amount} aside at {rate}% yearly interest, compounded each year. How much is it after {years} years? Use "
    "Python, to the cent.",
    "Use Python: {amount} dollars, {years} years, {rate}% interest compounded annually. Final amount to two decimals?",
    "What is the value of ${amount} after {years} years if it earns {rate}% each year and the interest is reinvested? "
    "Run it in Python; two decimals.",
    "A deposit of ${amount} earns {rate}% per year, added to the capital every year. Let Python find the balance "
    "after {years} years, to two decimals.",
)
def compound(material: Material) -> Draft:
    amount = material.draws.integer(12, 98) * 250
    rate = material.draws.integer(21, 89) / 10
    years = material.draws.integer(4, 19)
    value = amount * (1 + rate / 100) ** years
    return Draft(
        entities=(str(amount), str(rate), str(years)),
        slots={"amount": str(amount), "rate": str(rate), "years": str(years)},
        steps=(python(f"{amount} * (1 + {rate} / 100) ** {years}"),),
        answer=asked(value),
        says=f"It grows to ${value:.2f}.",
    )


@family(
    EASY,
    "What is {symbol} trading at right now? Answer in dollars to two decimals.",
    "Give me the current share price of {name} ({symbol}), to the cent.",
    "Pull the latest quote of {symbol} and tell me its price to two decimals.",
    "How much does one share of {symbol} cost at the moment? Two decimals, please.",
    "I need the live price of {name}, ticker {symbol}, in dollars and cents.",
)
def price(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("fmp_get_quote", symbol=company.symbol),),
        answer=asked(quote.price),
        says=f"{company.symbol} trades at ${quote.price:.2f}.",
    )


@family(
    EASY,
    "What is the {what} of {symbol}? Answer in dollars to two decimals.",
    "From the quote of {symbol}, tell me the {what}, to the cent.",
    "Look up {name} ({symbol}): I want its {what}, two decimals.",
    "Today's trading in {symbol}: what has been the {what}? Round to two decimals.",
    "Check where {symbol} has been so far: what is the {what}, in dollars and cents?",
)
def day_range(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(_OF_QUOTE)
    value = read(material.quote(company))
    return Draft(
        entities=(company.symbol, what),
        slots=named(company, what=what),
        steps=(call("fmp_get_quote", symbol=company.symbol),),
        answer=asked(value),
        says=f"{company.symbol}: the {what} is ${value:.2f}.",
    )


@family(
    EASY,
    "By how many percent is {symbol} up or down today? Give the sign and two decimals.",
    "How has {name} ({symbol}) moved today, in percent? Two decimals, with a minus sign if it fell.",
    "Tell me today's percentage change of {symbol}, signed, to two decimals.",
    "What is the percent change of {symbol} against yesterday's close? Signed, two decimals.",
    "Is {symbol} in the green today? Give the move in percent with its sign and two decimals.",
)
def change_percent(material: Material) -> Draft:
    company = material.company()
    change = material.quote(company).change_percent
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("fmp_get_change_percent", symbol=company.symbol),),
        answer=asked(change),
        says=f"{company.symbol} has moved by {change:+.2f}% today.",
    )


@family(
    EASY,
    "Where did {symbol} close on the last trading day? Two decimals.",
    "What was the previous close of {name} ({symbol}) in dollars, to the cent?",
    "Tell me {symbol}'s previous closing price to two decimals.",
    "At what price did {symbol} finish the session before today's? Round to two decimals.",
    "I forgot where {name} ({symbol}) ended up last session. Closing price to the cent, please.",
)
def previous_close(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("fmp_get_previous_close", symbol=company.symbol),),
        answer=asked(close),
        says=f"{company.symbol} closed at ${close:.2f}.",
    )


@family(
    EASY,
    "Ask Polygon for the previous trading day of {symbol}: what was the {what}? Two decimals.",
    "According to Polygon, what was the {what} of {symbol} in its last full session, to the cent?",
    "Use Polygon's previous-close data for {name} ({symbol}) and report the {what} to two decimals.",
    "In Polygon's bar for the last finished session of {symbol}, what is the {what}? Two decimals.",
    "Last completed session of {symbol} on Polygon: give me the {what} in dollars and cents.",
)
def last_session(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(OF_BAR)
    bar = material.market.previous_close(company.symbol)
    assert bar is not None  # every company of the world is traded
    return Draft(
        entities=(company.symbol, what),
        slots=named(company, what=what),
        steps=(call("polygon_get_previous_close", ticker=company.symbol),),
        answer=asked(read(bar)),
        says=f"The {what} of {company.symbol} was ${read(bar):.2f}.",
    )


@family(
    EASY,
    "Who is the chief executive of {name} ({symbol})?",
    "Name the CEO in the company profile of {symbol}.",
    "I have to write to the head of {name}, ticker {symbol}. What is the CEO's full name?",
    "Look at the profile of {symbol} and tell me who leads the company.",
    "Which person runs {symbol} as CEO, going by its profile?",
)
def chief(material: Material) -> Draft:
    company = material.company()
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("fmp_get_company_profile", symbol=company.symbol),),
        answer=choice(company.ceo, (other.ceo for other in material.market.companies)),
        says=f"The CEO of {company.symbol} is {company.ceo}.",
    )


@family(
    EASY,
    "How many people work for {name} ({symbol})? Give the whole number from Polygon.",
    "Use Polygon's ticker details to find the number of employees of {symbol}.",
    "What is the headcount of {symbol} according to Polygon's details? The exact number, please.",
    "Polygon lists how many employees {name} ({symbol}) has. What is that number?",
    "How large is the staff of {symbol} in Polygon's details? Give the exact count.",
)
def staff(material: Material) -> Draft:
    company = material.company()
    assert company.employees is not None  # every company of the world has one
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("polygon_get_ticker_details", ticker=company.symbol),),
        answer=asked(company.employees, 0),
        says=f"{company.name} has {company.employees} employees.",
    )


@family(
    EASY,
    "Which company is listed under {symbol}? Give its full name.",
    "Search for the ticker {symbol} and tell me the full company name behind it.",
    "What is the full name of the company with the symbol {symbol}?",
    "I saw {symbol} on the tape. Look up what the company is called in full.",
    "{symbol}: whose ticker is that? The full name of the company, please.",
)
def listed_name(material: Material) -> Draft:
    company = material.company()
    names = (other.name.removesuffix(".") for other in material.market.companies)
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol},
        steps=(call("fmp_search_ticker", query=company.symbol),),
        answer=choice(company.name.removesuffix("."), names),
        says=f"{company.symbol} is the ticker of {company.name}",
    )


@family(
    EASY,
    "What was the {what} of {symbol} in its {when}? Answer in whole dollars.",
    "From the income statement of {name} ({symbol}): {what} of the {when}, in whole dollars.",
    "Tell me the {what} that {symbol} reported for the {when}, exactly, in dollars.",
    "Look up {symbol}'s income statement and give the {what} for the {when} in whole dollars.",
    "How many dollars of {what} did {name} ({symbol}) report for the {when}? The exact figure, please.",
)
def earnings(material: Material) -> Draft:
    company, (what, read), (period, when) = material.company(), material.one(_OF_STATEMENT), material.one(_PERIODS)
    value = read(material.statements(company, period)[0])
    # Annual is the tool's default, so a call without the period is right, too.
    matters = {"symbol": company.symbol} | ({} if period is Period.ANNUAL else {"period": period.value})
    return Draft(
        entities=(company.symbol, what, when),
        slots=named(company, what=what, when=when),
        steps=(Step(tool="fmp_get_income_statement", matters=matters),),
        answer=asked(value, 0),
        says=f"The {what} of {company.symbol} in its {when} was ${value}.",
    )


@family(
    EASY,
    "What is the {place} headline about {symbol}? Quote it word for word, and no other.",
    "Give me the title of the {place} piece of stock news on {name} ({symbol}), exactly as written.",
    "Find the {place} news item tagged {symbol} and repeat only its headline, verbatim.",
    "Check the stock news for {symbol}: how does the {place} headline read, word for word?",
    "What did the press write about {symbol}? I want the exact title of the {place} article only.",
)
def headline(material: Material) -> Draft | None:
    return _headline(material, "fmp_get_stock_news", "tickers")


@family(
    EASY,
    "Use Polygon news: what is the {place} headline on {symbol}, word for word?",
    "According to Polygon's news for {name} ({symbol}), what is the {place} article called? Quote that title only.",
    "Quote the title of the {place} Polygon article about {symbol} exactly, and nothing else.",
    "Fetch Polygon's news for {symbol} and repeat the {place} headline verbatim.",
    "Polygon's {place} story on {name} ({symbol}): give its title exactly as printed.",
)
def polygon_headline(material: Material) -> Draft | None:
    return _headline(material, "polygon_get_news", "ticker")


@family(
    EASY,
    "In which city does {name} have its headquarters? Ask the web.",
    "Find out online where {name} ({symbol}) is based and name the city.",
    "Use the web Q&A to find the city in which {name} has its head office.",
    "Which city is home to the headquarters of {symbol}? Look for a direct answer on the web.",
    "I am to visit the main office of {name} ({symbol}). To which city do I travel?",
)
def home_city(material: Material) -> Draft:
    company = material.company()
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("tavily_qna_search", free={"query": f"Where is {company.name} based?"}),),
        answer=choice(company.city, (other.city for other in material.market.companies)),
        says=f"{company.name} has its headquarters in {company.city}.",
    )


@family(
    EASY,
    "Search the web: in what year was {name} founded?",
    "Do a web search for {name} ({symbol}) and tell me its founding year.",
    "Since which year has {name} existed? Search for a page that says so.",
    "Look {name} up with a web search and give the year in which it was established.",
    "How far back does the history of {name} go? Search the web for its founding year.",
)
def founding_year(material: Material) -> Draft:
    company = material.company()
    assert company.founded is not None  # every company of the world has one
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("tavily_search", free={"query": f"{company.name} company profile", "max_results": 1}),),
        answer=asked(company.founded, 0),
        says=f"{company.name} was founded in {company.founded}.",
    )


@family(
    EASY,
    "What is the Slack id of the channel #{room}?",
    "List our Slack channels and give me the id of #{room} only.",
    "I need the channel id of #{room}. Which is it?",
    "Which id does #{room} have in our Slack workspace?",
    "Look through the Slack channels for #{room} and tell me its id.",
)
def channel_id(material: Material) -> Draft:
    channel = material.one(material.channels)
    return Draft(
        entities=(channel.name,),
        slots={"room": channel.name},
        steps=(call("list_slack_channels"),),
        answer=choice(channel.id, (other.id for other in material.rooms)),
        says=f"The id of #{channel.name} is {channel.id}.",
    )


@family(
    EASY,
    "Who wrote the {place} message in #{room}? Give the user name as Slack shows it.",
    "Read the history of #{room}: which user posted the {place} message?",
    "Look into the Slack channel #{room} and name the author of the {place} message.",
    "Give me the user name behind the {place} post in #{room}.",
    "By whom is the {place} message that stands in #{room}? Just the user name.",
)
def author(material: Material) -> Draft:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_MESSAGES) - 1)
    messages = material.workspace.history(channel.id, 100)
    people = {message.user for room in material.rooms for message in material.workspace.history(room.id, 100)}
    author = messages[place].user
    return Draft(
        entities=(channel.name, _MESSAGES[place]),
        slots={"room": channel.name, "place": _MESSAGES[place]},
        steps=(call("get_slack_channel_history", free={"channel_id": channel.id}),),
        answer=choice(author, people),
        says=f"The {_MESSAGES[place]} message in #{channel.name} is by {author}.",
    )


@family(
    MEDIUM,
    "The {place} message in #{room} is about a stock. What does that stock trade at now? Two decimals.",
    "Read #{room}, take the ticker in the {place} message, and give me its current price to the cent.",
    "Which stock does the {place} post in #{room} name, and what is its price right now, to two decimals?",
    "Check the {place} message in the Slack channel #{room} for a ticker and quote that stock, two decimals.",
    "Somebody wrote about a stock in #{room}; it is the {place} message. Tell me the price of that stock now, in "
    "dollars and cents.",
)
def mentioned_price(material: Material) -> Draft | None:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_MESSAGES) - 1)
    text = material.workspace.history(channel.id, 100)[place].text
    mentioned = {word for word in re.findall(r"\w+", text) if material.market.company(word) is not None}
    if len(mentioned) != 1:
        return None
    symbol = mentioned.pop()
    quote = material.quote(symbol)
    return Draft(
        entities=(channel.name, _MESSAGES[place]),
        slots={"room": channel.name, "place": _MESSAGES[place]},
        steps=(
            call("get_slack_channel_history", free={"channel_id": channel.id}),
            call("fmp_get_quote", symbol=symbol),
        ),
        answer=asked(quote.price),
        says=f"The message is about {symbol}, which trades at ${quote.price:.2f}.",
    )


@family(
    MEDIUM,
    "Polygon's news has an article on a supply agreement of {symbol}. What does the other company's stock trade at? "
    "Two decimals.",
    "With whom did {name} ({symbol}) sign a supply agreement, according to Polygon's news? Give me the current price "
    "of that partner's stock to the cent.",
    "Find the supply agreement in the Polygon news of {symbol} and quote the stock of the other party, two decimals.",
    "Look in Polygon's news for the company that signed a supply agreement with {symbol}, then tell me its share "
    "price to two decimals.",
    "{symbol} has a partner in a supply agreement; Polygon's news names it. What is one share of the partner worth "
    "now, in dollars and cents?",
)
def partner_price(material: Material) -> Draft | None:
    company = material.company()
    deals = [article for article in material.market.news([company.symbol], 10) if "supply agreement" in article.title]
    if len(deals) != 1:
        return None
    (partner,) = (symbol for symbol in deals[0].symbols if symbol != company.symbol)
    quote = material.quote(partner)
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("polygon_get_news", ticker=company.symbol), call("fmp_get_quote", symbol=partner)),
        answer=asked(quote.price),
        says=f"{company.symbol} signed with {partner}, which trades at ${quote.price:.2f}.",
    )
