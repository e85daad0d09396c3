"""Easy: one figure of one stock, today or at the last close."""

from __future__ import annotations

from collections.abc import Callable

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked
from mcprl.tasks.generation.material import Material
from mcprl.world.facts import Bar, Quote

__all__ = ["FAMILIES"]

_OF_QUOTE: tuple[tuple[str, Callable[[Quote], float | None]], ...] = (
    ("highest price of today", lambda quote: quote.day_high),
    ("lowest price of today", lambda quote: quote.day_low),
)

_OF_SESSION: tuple[tuple[str, Callable[[Bar], float]], ...] = (
    ("closing price", lambda bar: bar.close),
    ("opening price", lambda bar: bar.open),
    ("high", lambda bar: bar.high),
    ("low", lambda bar: bar.low),
)


def _price(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),),
        answer=asked(quote.price),
        says=f"{company.symbol} trades at ${quote.price:.2f}.",
    )


def _day_range(material: Material) -> Draft | None:
    company, (what, read) = material.company(), material.one(_OF_QUOTE)
    value = read(material.quote(company))
    if value is None:
        return None
    return Draft(
        entities=(company.symbol, what),
        slots={"name": company.name, "symbol": company.symbol, "what": what},
        steps=(Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),),
        answer=asked(value),
        says=f"{company.symbol}: the {what} is ${value:.2f}.",
    )


def _change_percent(material: Material) -> Draft:
    company = material.company()
    change = material.quote(company).change_percent
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="fmp_get_change_percent", matters={"symbol": company.symbol}),),
        answer=asked(change),
        says=f"{company.symbol} has moved by {change:+.2f}% today.",
    )


def _previous_close(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "symbol": company.symbol},
        steps=(Step(tool="fmp_get_previous_close", matters={"symbol": company.symbol}),),
        answer=asked(close),
        says=f"{company.symbol} closed at ${close:.2f}.",
    )


def _last_session(material: Material) -> Draft | None:
    company, (what, read) = material.company(), material.one(_OF_SESSION)
    bar = material.market.previous_close(company.symbol)
    if bar is None:
        return None
    return Draft(
        entities=(company.symbol, what),
        slots={"name": company.name, "symbol": company.symbol, "what": what},
        steps=(Step(tool="polygon_get_previous_close", matters={"ticker": company.symbol}),),
        answer=asked(read(bar)),
        says=f"The {what} of {company.symbol} was ${read(bar):.2f}.",
    )


FAMILIES = (
    Family(
        name="price",
        difficulty=Difficulty.EASY,
        wordings=(
            "What is {symbol} trading at right now? Answer in dollars to two decimals.",
            "Give me the current share price of {name} ({symbol}), to the cent.",
            "Pull the latest quote of {symbol} and tell me its price to two decimals.",
            "How much does one share of {symbol} cost at the moment? Two decimals, please.",
        ),
        held_out=("I need the live price of {name}, ticker {symbol}, in dollars and cents.",),
        draw=_price,
    ),
    Family(
        name="day-range",
        difficulty=Difficulty.EASY,
        wordings=(
            "What is the {what} of {symbol}? Answer in dollars to two decimals.",
            "From the quote of {symbol}, tell me the {what}, to the cent.",
            "Look up {name} ({symbol}): I want its {what}, two decimals.",
            "Today's trading in {symbol}: what has been the {what}? Round to two decimals.",
        ),
        held_out=("Check where {symbol} has been so far: what is the {what}, in dollars and cents?",),
        draw=_day_range,
    ),
    Family(
        name="change-percent",
        difficulty=Difficulty.EASY,
        wordings=(
            "By how many percent is {symbol} up or down today? Give the sign and two decimals.",
            "How has {name} ({symbol}) moved today, in percent? Two decimals, with a minus sign if it fell.",
            "Tell me today's percentage change of {symbol}, signed, to two decimals.",
            "What is the percent change of {symbol} against yesterday's close? Signed, two decimals.",
        ),
        held_out=("Is {symbol} in the green today? Give the move in percent with its sign and two decimals.",),
        draw=_change_percent,
    ),
    Family(
        name="previous-close",
        difficulty=Difficulty.EASY,
        wordings=(
            "Where did {symbol} close on the last trading day? Two decimals.",
            "What was the previous close of {name} ({symbol}) in dollars, to the cent?",
            "Tell me {symbol}'s previous closing price to two decimals.",
            "At what price did {symbol} finish the session before today's? Round to two decimals.",
        ),
        held_out=("I forgot where {name} ({symbol}) ended up last session. Closing price to the cent, please.",),
        draw=_previous_close,
    ),
    Family(
        name="last-session",
        difficulty=Difficulty.EASY,
        wordings=(
            "Ask Polygon for the previous trading day of {symbol}: what was the {what}? Two decimals.",
            "According to Polygon, what was the {what} of {symbol} in its last full session, to the cent?",
            "Use Polygon's previous-close data for {name} ({symbol}) and report the {what} to two decimals.",
            "In Polygon's bar for the last finished session of {symbol}, what is the {what}? Two decimals.",
        ),
        held_out=("Last completed session of {symbol} on Polygon: give me the {what} in dollars and cents.",),
        draw=_last_session,
    ),
)
