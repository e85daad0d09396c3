"""Tasks computed from one or two calls: prices over a week, the day's movers, comparisons of companies."""

from __future__ import annotations

import json
from itertools import pairwise

from mcprl_market.generation.drafts import (
    EASY,
    MEDIUM,
    OF_BAR,
    SIDES,
    Draft,
    Material,
    asked,
    bars_step,
    call,
    choice,
    family,
    movers_step,
    named,
    python,
    span,
)

_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_PLACES = ("biggest", *(f"{ordinal} biggest" for ordinal in _ORDINALS))


@family(
    EASY,
    "What was the {what} of {symbol} on {day}? Two decimals.",
    "Look up the daily bar of {name} ({symbol}) for {day} and give me the {what}, to the cent.",
    "On {day}, what {what} did {symbol} have? Answer in dollars with two decimals.",
    "From Polygon's daily prices of {symbol}: the {what} on {day}, to two decimals.",
    "Go back to {day}: what was {symbol}'s {what} on that day, in dollars and cents?",
)
def bar_of_day(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(OF_BAR)
    bar = material.one(material.bars(company, material.one(material.weeks)))
    day = bar.start.date()
    return Draft(
        entities=(company.symbol, day.isoformat(), what),
        slots=named(company, day=day.isoformat(), what=what),
        steps=(bars_step(company, (day, day)),),
        answer=asked(read(bar)),
        says=f"On {day.isoformat()} the {what} of {company.symbol} was ${read(bar):.2f}.",
    )


@family(
    MEDIUM,
    "What was the average daily close of {symbol} from {start} to {end}? Compute it with Python, two decimals.",
    "Get the daily bars of {name} ({symbol}) between {start} and {end} and average the closing prices in Python, to "
    "the cent.",
    "With Python, work out the mean closing price of {symbol} over the days {start} through {end}. Two decimals.",
    "Average close of {symbol}, {start} to {end}, calculated in Python and rounded to two decimals, please.",
    "At what price did {symbol} close on average in the days from {start} up to {end}? Let Python do the sum; two "
    "decimals.",
)
def week_average(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    average = sum(closes) / len(closes)
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=named(company, **span(week)),
        steps=(bars_step(company, week), python(f"sum({closes}) / {len(closes)}")),
        answer=asked(average, at_most=8),
        says=f"The average close of {company.symbol} was ${average:.2f}.",
    )


@family(
    MEDIUM,
    "By how many percent did {symbol} move from its close on {start} to its close on {end}? Python, signed, two "
    "decimals.",
    "Use the daily bars of {name} ({symbol}) from {start} to {end} and compute in Python the change from the first "
    "close to the last, in percent, signed, two decimals.",
    "How did {symbol} do between the closes of {start} and {end}? Compute the percent change in Python; signed, two "
    "decimals.",
    "Percent return of {symbol} from the {start} close to the {end} close, computed with Python, signed, two decimals.",
    "Had I bought {symbol} at the close of {start} and sold at the close of {end}, what would my return be? Python; "
    "signed percent, two decimals.",
)
def week_return(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    gain = (closes[-1] / closes[0] - 1) * 100
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=named(company, **span(week)),
        steps=(bars_step(company, week), python(f"({closes[-1]} / {closes[0]} - 1) * 100")),
        answer=asked(gain, at_most=8),
        says=f"{company.symbol} moved {gain:+.2f}% from the first close to the last.",
    )


@family(
    MEDIUM,
    "How many shares of {symbol} were traded in all from {start} to {end}? Add up the daily volumes with "
    "process_mcp_data and give the exact number.",
    "Sum the daily volumes of {name} ({symbol}) between {start} and {end} with process_mcp_data and give me the exact "
    "total.",
    "Fetch {symbol}'s daily bars from {start} to {end}, pass the volumes to process_mcp_data, and report their sum as "
    "a whole number.",
    "Total trading volume of {symbol}, {start} through {end}: let process_mcp_data add it up. Exact number.",
    "Exactly how many {symbol} shares changed hands over the days {start} to {end}? Use process_mcp_data to add up "
    "the volumes.",
)
def week_volume(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    volumes = [bar.volume for bar in material.bars(company, week)]
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=named(company, **span(week)),
        steps=(
            bars_step(company, week),
            call("process_mcp_data", free={"data": json.dumps(volumes), "processing_code": "sum(data)"}),
        ),
        answer=asked(sum(volumes), 0, at_most=8),
        says=f"In all, {sum(volumes)} shares of {company.symbol} changed hands.",
    )


@family(
    MEDIUM,
    "What was the largest rise of {symbol} from one daily close to the next between {start} and {end}, in dollars? "
    "Use create_data_pipeline: first the differences, then their maximum. Two decimals.",
    "Take the daily closes of {name} ({symbol}) from {start} to {end} and build a pipeline with create_data_pipeline "
    "that computes the differences and then the biggest one. In dollars, to the cent.",
    "With create_data_pipeline, find the biggest gain in dollars between two consecutive closes of {symbol} from "
    "{start} to {end}. Two decimals.",
    "Run a data pipeline (create_data_pipeline) over {symbol}'s closes of {start} through {end}: differences, then "
    "maximum. Report the largest rise in dollars with two decimals.",
    "Between {start} and {end}, on which step from close to close did {symbol} gain most, and how many dollars was "
    "it? Let create_data_pipeline compute the differences and the maximum; two decimals.",
)
def largest_rise(material: Material) -> Draft | None:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    rise = max(after - before for before, after in pairwise(closes))
    if rise <= 0:
        return None
    steps = ["[b - a for a, b in zip(data, data[1:])]", "max(data)"]
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=named(company, **span(week)),
        steps=(
            bars_step(company, week),
            call("create_data_pipeline", free={"pipeline_steps": steps, "input_data": json.dumps(closes)}),
        ),
        answer=asked(rise, at_most=8),
        says=f"The largest rise from one close to the next was ${rise:.2f}.",
    )


@family(
    EASY,
    "Which stock is today's {place} {side}, and by how many percent has it moved? Signed, two decimals.",
    "Name the {place} {side} of the day with its percent change (sign and two decimals).",
    "Look at the list of {side}s: who is the {place} one, and what is its change in percent, to two decimals?",
    "What is the percentage change of the {place} {side} today? Give ticker and signed figure, two decimals.",
    "Tell me about today's {place} {side}: its ticker and its move in percent, signed, two decimals.",
)
def mover(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = material.mover(side, rank)
    if quote is None:
        return None
    return Draft(
        entities=(side, str(rank)),
        slots={"side": side, "place": _PLACES[rank - 1]},
        steps=(movers_step(side, rank),),
        answer=asked(quote.change_percent),
        says=f"The {_PLACES[rank - 1]} {side} is {quote.symbol} with {quote.change_percent:+.2f}%.",
    )


@family(
    MEDIUM,
    "Who is the CEO of today's {place} {side}?",
    "Find the {place} {side} of the day, then tell me who runs that company.",
    "Take the {place} name on today's list of {side}s and look up its chief executive.",
    "Which person leads the company that is the {place} {side} today? Full name, please.",
    "I want the name of the chief executive behind today's {place} {side}.",
)
def mover_chief(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = material.mover(side, rank)
    company = quote and material.market.company(quote.symbol)
    if quote is None or company is None:
        return None
    return Draft(
        entities=(side, str(rank)),
        slots={"side": side, "place": _PLACES[rank - 1]},
        steps=(movers_step(side, rank), call("fmp_get_company_profile", symbol=quote.symbol)),
        answer=choice(company.ceo, (other.ceo for other in material.market.companies)),
        says=f"The {_PLACES[rank - 1]} {side} is {quote.symbol}, which is led by {company.ceo}.",
    )


@family(
    MEDIUM,
    "Find today's top {count} {side}s and compute their average percent change with Python. Signed, two decimals.",
    "What is the mean move of the {count} biggest {side}s today? Use Python; percent, signed, two decimals.",
    "Get the {count} leading {side}s and average their changes in Python, signed, to two decimals.",
    "Across the {count} biggest {side}s of the day, what is the average percentage change? Python, sign and two "
    "decimals.",
    "If I had held today's {count} biggest {side}s in equal parts, what would the average change be? Python; signed "
    "percent, two decimals.",
)
def movers_average(material: Material) -> Draft | None:
    side, count = material.one(SIDES), material.one(material.ranks)
    changes = [quote.change_percent for quote in material.movers(side, count)]
    if not 2 <= count == len(changes):
        return None
    average = sum(changes) / count
    return Draft(
        entities=(side, str(count)),
        slots={"side": side, "count": str(count)},
        steps=(movers_step(side, count), python(f"sum({changes}) / {count}")),
        answer=asked(average),
        says=f"The top {count} {side}s moved {average:+.2f}% on average.",
    )


@family(
    MEDIUM,
    "By how many percent is the price of {symbol} above (+) or below (-) that of {other}? Compute it with Python, "
    "signed, to two decimals.",
    "Compare the current prices of {name} ({symbol}) and {other_name} ({other}) with Python: how far is the first "
    "from the second, in percent of the second, signed, two decimals?",
    "Get both quotes, then use Python: (price of {symbol} - price of {other}) / price of {other}, in percent with two "
    "decimals.",
    "How much more expensive is a share of {symbol} than one of {other}, in percent? Use Python; a minus sign if it "
    "is cheaper; two decimals.",
    "Take the price of {other} as 100%. Using Python, how far above or below it is {symbol} now? Signed, in percent, "
    "two decimals.",
)
def price_gap(material: Material) -> Draft:
    first, second = material.several(2)
    price, other = material.quote(first).price, material.quote(second).price
    gap = (price - other) / other * 100
    return Draft(
        entities=(first.symbol, second.symbol),
        slots=named(first, second),
        steps=(
            call("fmp_get_quote", symbol=first.symbol),
            call("fmp_get_quote", symbol=second.symbol),
            python(f"({price} - {other}) / {other} * 100"),
        ),
        answer=asked(gap),
        says=f"A share of {first.symbol} costs {gap:+.2f}% compared with {second.symbol}.",
        in_any_order=True,
    )


@family(
    MEDIUM,
    "Which is worth more by market cap, {symbol} or {other}? Name it with its market cap in whole dollars, and give "
    "no other figure.",
    "Compare the market capitalisations of {name} ({symbol}) and {other_name} ({other}). State the larger one in "
    "whole dollars, and no other number.",
    "{symbol} against {other}: whose market cap is bigger? Answer with the bigger figure alone, in dollars.",
    "Look at the quotes of {symbol} and {other} and report only the higher of the two market caps, in whole dollars.",
    "I want to know which of {other} and {symbol} the market values higher. Give just that company and its market cap "
    "in whole dollars.",
)
def larger_value(material: Material) -> Draft | None:
    first, second = material.several(2)
    values = [material.quote(company).market_cap for company in (first, second)]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return None
    winner, value = (first, values[0]) if values[0] > values[1] else (second, values[1])
    return Draft(
        entities=tuple(sorted((first.symbol, second.symbol))),
        slots=named(first, second),
        steps=(call("fmp_get_quote", symbol=first.symbol), call("fmp_get_quote", symbol=second.symbol)),
        # Only one number may be given: an answer with both values does not say which one is larger.
        answer=asked(value, 0, at_most=1),
        says=f"{winner.name} is worth more: ${value}.",
        in_any_order=True,
    )


@family(
    MEDIUM,
    "What was the net margin of {symbol} in its last fiscal year? Use Python; percent, two decimals.",
    "Work out with Python how many percent of its revenue {name} ({symbol}) kept as net income in the last fiscal "
    "year, to two decimals.",
    "Get the annual income statement of {symbol} and divide net income by revenue in Python. Percent, two decimals.",
    "Net income as a percentage of revenue for {symbol}, latest annual statement: compute it in Python and round to "
    "two decimals.",
    "Of every 100 dollars that {name} ({symbol}) took in last fiscal year, how many were profit after everything? "
    "Compute in Python, two decimals.",
)
def net_margin(material: Material) -> Draft:
    company = material.company()
    statement = material.statements(company)[0]
    margin = statement.net_income / statement.revenue * 100
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(
            call("fmp_get_income_statement", symbol=company.symbol),
            python(f"{statement.net_income} / {statement.revenue} * 100"),
        ),
        answer=asked(margin),
        says=f"The net margin of {company.symbol} was {margin:.2f}%.",
    )


@family(
    MEDIUM,
    "Starting from its previous close, by how many percent must {symbol} move to reach ${target}? Use Python; signed, "
    "two decimals.",
    "Fetch the previous close of {name} ({symbol}) and compute in Python the percentage change if the price goes to "
    "${target}. Signed, two decimals.",
    "My target for {symbol} is ${target}. How far is that from the previous close in percent? Compute it with Python, "
    "with the sign and two decimals.",
    "With Python: the move in percent from {symbol}'s previous close to ${target}, signed, to two decimals.",
    "Suppose {symbol} traded at ${target}. Relative to where it last closed, what change is that? Python, percent "
    "with sign, two decimals.",
)
def price_target(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    target = round(close * material.draws.between(0.8, 1.3))
    move = (target - close) / close * 100
    return Draft(
        entities=(company.symbol, str(target)),
        slots=named(company, target=str(target)),
        steps=(call("fmp_get_previous_close", symbol=company.symbol), python(f"({target} - {close}) / {close} * 100")),
        answer=asked(move),
        says=f"From its previous close {company.symbol} would have to move {move:+.2f}%.",
    )


@family(
    MEDIUM,
    "Find the ticker of {name}, then tell me what it trades at, to two decimals.",
    "I don't know the symbol of {name}. Look it up and give me the current price to the cent.",
    "Search for {name} and quote its current share price with two decimals.",
    "What does one share of {name} cost now? You will have to find its ticker first. Two decimals.",
    "Price check on {name}: look up its symbol, then report the current price in dollars and cents.",
)
def name_to_price(material: Material) -> Draft | None:
    company = material.company()
    if [found.symbol for found in material.market.search(company.name, 10)][:1] != [company.symbol]:
        return None
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name},
        steps=(call("fmp_search_ticker", free={"query": company.name}), call("fmp_get_quote", symbol=company.symbol)),
        answer=asked(price),
        says=f"{company.name} ({company.symbol}) trades at ${price:.2f}.",
    )


@family(
    MEDIUM,
    "Check whether the market is open. If it is, give the current price of {symbol}; if not, its previous close. Two "
    "decimals.",
    "Is the stock market trading? If so I want the live price of {name} ({symbol}), otherwise its last close, to the "
    "cent.",
    "Look at the market status first. Market open: report {symbol}'s current price. Market closed: report its "
    "previous close. Two decimals.",
    "Depending on whether the market is open right now, tell me {symbol}'s current price (open) or previous close "
    "(closed), to two decimals.",
    "First see if trading is on. During trading hours I need {symbol}'s price now, outside of them the previous "
    "close, in dollars and cents.",
)
def price_if_open(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    is_open = material.market.status().session == "open"
    live, last = ("fmp_get_quote", quote.price), ("fmp_get_previous_close", quote.previous_close)
    (tool, value), (other, _) = (live, last) if is_open else (last, live)
    return Draft(
        entities=(company.symbol,),
        slots=named(company),
        steps=(call("polygon_get_market_status"), call(tool, symbol=company.symbol)),
        answer=asked(value, at_most=2),
        says=f"The market is {'open' if is_open else 'closed'}; {company.symbol} stands at ${value:.2f}.",
        also=(other,),
    )
