"""What is said on the web and in the chat: easy for one look, medium where it leads to a price."""

from __future__ import annotations

import re

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, choice
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]

_PLACES = ("latest", "second latest", "third latest", "fourth latest")


def _home_city(material: Material) -> Draft:
    company = material.company()
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="tavily_qna_search", free={"query": f"Where is {company.name} based?"}),),
        answer=choice(company.city, (other.city for other in material.market.companies)),
        says=f"{company.name} has its headquarters in {company.city}.",
    )


def _founding_year(material: Material) -> Draft | None:
    company = material.company()
    if company.founded is None:
        return None
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="tavily_search", free={"query": f"{company.name} company profile", "max_results": 1}),),
        answer=asked(company.founded, 0),
        says=f"{company.name} was founded in {company.founded}.",
    )


def _channel_id(material: Material) -> Draft:
    channel = material.one(material.channels)
    return Draft(
        entities=(channel.name,),
        slots={"room": channel.name},
        steps=(Step(tool="list_slack_channels"),),
        answer=choice(channel.id, (other.id for other in material.rooms)),
        says=f"The id of #{channel.name} is {channel.id}.",
    )


def _author(material: Material) -> Draft:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_PLACES) - 1)
    messages = material.workspace.history(channel.id, 100)
    people = {message.user for room in material.rooms for message in material.workspace.history(room.id, 100)}
    author = messages[place].user
    return Draft(
        entities=(channel.name, _PLACES[place]),
        slots={"room": channel.name, "place": _PLACES[place]},
        steps=(Step(tool="get_slack_channel_history", free={"channel_id": channel.id}),),
        answer=choice(author, people),
        says=f"The {_PLACES[place]} message in #{channel.name} is by {author}.",
    )


def _mentioned_price(material: Material) -> Draft | None:
    channel, place = material.one(material.channels), material.draws.integer(0, len(_PLACES) - 1)
    text = material.workspace.history(channel.id, 100)[place].text
    named = {word for word in re.findall(r"\w+", text) if material.market.company(word) is not None}
    if len(named) != 1:
        return None
    symbol = named.pop()
    quote = material.market.quote(symbol)
    assert quote is not None
    return Draft(
        entities=(channel.name, _PLACES[place]),
        slots={"room": channel.name, "place": _PLACES[place]},
        steps=(
            Step(tool="get_slack_channel_history", free={"channel_id": channel.id}),
            Step(tool="fmp_get_quote", matters={"symbol": symbol}),
        ),
        answer=asked(quote.price),
        says=f"The message is about {symbol}, which trades at ${quote.price:.2f}.",
    )


def _partner_price(material: Material) -> Draft | None:
    company = material.company()
    deals = [article for article in material.market.news([company.symbol], 10) if "supply agreement" in article.title]
    if len(deals) != 1:
        return None
    (partner,) = (symbol for symbol in deals[0].symbols if symbol != company.symbol)
    quote = material.market.quote(partner)
    assert quote is not None
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(
            Step(tool="polygon_get_news", matters={"ticker": company.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": partner}),
        ),
        answer=asked(quote.price),
        says=f"{company.symbol} signed with {partner}, which trades at ${quote.price:.2f}.",
    )


FAMILIES = (
    Family(
        name="home-city",
        difficulty=Difficulty.EASY,
        wordings=(
            "In which city does {name} have its headquarters? Ask the web.",
            "Find out online where {name} ({symbol}) is based and name the city.",
            "Use the web Q&A to find the city in which {name} has its head office.",
            "Which city is home to the headquarters of {symbol}? Look for a direct answer on the web.",
        ),
        held_out=("I am to visit the main office of {name} ({symbol}). To which city do I travel?",),
        draw=_home_city,
    ),
    Family(
        name="founding-year",
        difficulty=Difficulty.EASY,
        wordings=(
            "Search the web: in what year was {name} founded?",
            "Do a web search for {name} ({symbol}) and tell me its founding year.",
            "Since which year has {name} existed? Search for a page that says so.",
            "Look {name} up with a web search and give the year in which it was established.",
        ),
        held_out=("How far back does the history of {name} go? Search the web for its founding year.",),
        draw=_founding_year,
    ),
    Family(
        name="channel-id",
        difficulty=Difficulty.EASY,
        wordings=(
            "What is the Slack id of the channel #{room}?",
            "List our Slack channels and give me the id of #{room} only.",
            "I need the channel id of #{room}. Which is it?",
            "Which id does #{room} have in our Slack workspace?",
        ),
        held_out=("Look through the Slack channels for #{room} and tell me its id.",),
        draw=_channel_id,
    ),
    Family(
        name="author",
        difficulty=Difficulty.EASY,
        wordings=(
            "Who wrote the {place} message in #{room}? Give the user name as Slack shows it.",
            "Read the history of #{room}: which user posted the {place} message?",
            "Look into the Slack channel #{room} and name the author of the {place} message.",
            "Give me the user name behind the {place} post in #{room}.",
        ),
        held_out=("By whom is the {place} message that stands in #{room}? Just the user name.",),
        draw=_author,
    ),
    Family(
        name="mentioned-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "The {place} message in #{room} is about a stock. What does that stock trade at now? Two decimals.",
            "Read #{room}, take the ticker in the {place} message, and give me its current price to the cent.",
            "Which stock does the {place} post in #{room} name, and what is its price right now, to two decimals?",
            "Check the {place} message in the Slack channel #{room} for a ticker and quote that stock, two decimals.",
        ),
        held_out=(
            "Somebody wrote about a stock in #{room}; it is the {place} message. Tell me the price of that stock now, "
            "in dollars and cents.",
        ),
        draw=_mentioned_price,
    ),
    Family(
        name="partner-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Polygon's news has an article on a supply agreement of {symbol}. What does the other company's stock "
            "trade at? Two decimals.",
            "With whom did {name} ({symbol}) sign a supply agreement, according to Polygon's news? Give me the current "
            "price of that partner's stock to the cent.",
            "Find the supply agreement in the Polygon news of {symbol} and quote the stock of the other party, two "
            "decimals.",
            "Look in Polygon's news for the company that signed a supply agreement with {symbol}, then tell me its "
            "share price to two decimals.",
        ),
        held_out=(
            "{symbol} has a partner in a supply agreement; Polygon's news names it. What is one share of the partner "
            "worth now, in dollars and cents?",
        ),
        draw=_partner_price,
    ),
)
