"""Hard: several stocks, a computation in Python, and a report in the right channel."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from itertools import pairwise

from mcprl.goals import ExpectedState
from mcprl.records import Difficulty
from mcprl_market.generation.drafts import Draft, Family, Material, Step, asked, posted, posting, python
from mcprl_market.world.facts import Bar, Company

__all__ = ["REPORTS", "bars_step", "closes_of"]


def _post_price(material: Material) -> Draft:
    company, room = material.company(), material.room()
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol, room.name),
        slots={"symbol": company.symbol, "name": company.name, "room": room.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} trades at ${price:.2f}."),
        ),
        answer=asked(price),
        says=f"Posted to #{room.name}: {company.symbol} trades at ${price:.2f}.",
        state=(posted(room, price, 2, company.symbol),),
    )


def _post_change(material: Material) -> Draft:
    company, room = material.company(), material.room()
    change = material.quote(company).change_percent
    return Draft(
        entities=(company.symbol, room.name),
        slots={"symbol": company.symbol, "name": company.name, "purpose": room.purpose},
        steps=(
            Step(tool="list_slack_channels"),
            Step(tool="fmp_get_change_percent", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} has moved {change:+.2f}% today."),
        ),
        answer=asked(change),
        says=f"I told #{room.name} that {company.symbol} has moved {change:+.2f}% today.",
        state=(posted(room, change, 2, company.symbol),),
        in_any_order=True,
    )


def _keep_price(material: Material) -> Draft:
    company = material.company()
    price = material.quote(company).price
    key = f"{company.symbol.lower()}_price"
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name, "key": key},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            Step(tool="store_execution_result", matters={"context_key": key}, free={"data": f"{price:.2f}"}),
            Step(tool="get_execution_context", matters={"context_key": key}),
        ),
        answer=asked(price),
        says=f"{price:.2f} is stored under {key}.",
        state=(
            ExpectedState(
                tool="get_execution_context",
                arguments={"context_key": key},
                texts=(asked(price, at_most=None),),
            ),
        ),
    )


POSTING = (
    Family(
        name="post-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Post the current price of {symbol} to #{room}, with its ticker and two decimals, and tell me the price "
            "too.",
            "Get the price of {name} ({symbol}) and send it to #{room} on Slack (ticker and price, two decimals). Then "
            "report it here.",
            "Let #{room} know what {symbol} trades at, to the cent and with the ticker. Repeat the price to me.",
            "Look up {symbol}'s price, write it with the ticker to the channel #{room}, two decimals, and answer with "
            "the price.",
        ),
        held_out=(
            "The people in #{room} want to know what {symbol} costs right now. Tell them there (ticker, two decimals), "
            "and tell me.",
        ),
        draw=_post_price,
    ),
    Family(
        name="post-change",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            'Find the Slack channel whose purpose is "{purpose}" and post today\'s percent change of {symbol} there: '
            "ticker, sign, two decimals. Tell me the figure too.",
            "How has {name} ({symbol}) moved today, in percent? Post it with the ticker, signed, two decimals, to the "
            'channel for "{purpose}", and report it here.',
            "Get {symbol}'s change in percent (signed, two decimals) and send it with the ticker to the channel that "
            'is meant for "{purpose}". Repeat the figure to me.',
            'One of our Slack channels has the purpose "{purpose}". Post {symbol} and its percent change of today '
            "there, signed, two decimals, and answer with the figure.",
        ),
        held_out=(
            "Today's move of {symbol} (ticker, signed percent, two decimals) belongs in the channel described as "
            '"{purpose}". Post it there and tell me the number.',
        ),
        draw=_post_change,
    ),
    Family(
        name="keep-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Store the current price of {symbol} (two decimals) under the key {key}, read it back to be sure, and tell "
            "me the stored value.",
            "Get the price of {name} ({symbol}), keep it as {key}, then fetch {key} again and report what is in it. "
            "Two decimals.",
            "Save what {symbol} trades at now, to the cent, in the execution context as {key}. Then load {key} and "
            "give me the number.",
            "Put {symbol}'s price with two decimals into {key}, check it by reading {key} back, and answer with it.",
        ),
        held_out=(
            "I will need {symbol}'s price later: remember it to the cent under {key}, retrieve it once to check, and "
            "tell me what you retrieved.",
        ),
        draw=_keep_price,
    ),
)


_OF_BAR: tuple[tuple[str, Callable[[Bar], float]], ...] = (
    ("closing price", lambda bar: bar.close),
    ("opening price", lambda bar: bar.open),
    ("high", lambda bar: bar.high),
    ("low", lambda bar: bar.low),
)


def bars_step(company: Company, days: tuple[date, date]) -> Step:
    """The daily bars from one day to another."""
    start, end = (day.isoformat() for day in days)
    return Step(tool="polygon_get_aggs", matters={"ticker": company.symbol, "start_date": start, "end_date": end})


def closes_of(material: Material, company: Company, days: tuple[date, date]) -> list[float]:
    return [bar.close for bar in material.bars(company, days)]


def _slots(company: Company, days: tuple[date, date]) -> dict[str, str]:
    return {
        "symbol": company.symbol,
        "name": company.name,
        "start": days[0].isoformat(),
        "end": days[1].isoformat(),
    }


def _bar_of_day(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(_OF_BAR)
    bar = material.one(material.bars(company, material.one(material.weeks)))
    day = bar.start.date()
    return Draft(
        entities=(company.symbol, day.isoformat(), what),
        slots={"symbol": company.symbol, "name": company.name, "day": day.isoformat(), "what": what},
        steps=(bars_step(company, (day, day)),),
        answer=asked(read(bar)),
        says=f"On {day.isoformat()} the {what} of {company.symbol} was ${read(bar):.2f}.",
    )


def _week_average(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = closes_of(material, company, week)
    average = sum(closes) / len(closes)
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=_slots(company, week),
        steps=(bars_step(company, week), python(f"sum({closes}) / {len(closes)}")),
        answer=asked(average, at_most=8),
        says=f"The average close of {company.symbol} was ${average:.2f}.",
    )


def _week_return(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = closes_of(material, company, week)
    gain = (closes[-1] / closes[0] - 1) * 100
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=_slots(company, week),
        steps=(bars_step(company, week), python(f"({closes[-1]} / {closes[0]} - 1) * 100")),
        answer=asked(gain, at_most=8),
        says=f"{company.symbol} moved {gain:+.2f}% from the first close to the last.",
    )


def _week_volume(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    volumes = [bar.volume for bar in material.bars(company, week)]
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=_slots(company, week),
        steps=(
            bars_step(company, week),
            Step(
                tool="process_mcp_data",
                free={"data": json.dumps(volumes), "processing_code": "sum(data)"},
            ),
        ),
        answer=asked(sum(volumes), 0, at_most=8),
        says=f"In all, {sum(volumes)} shares of {company.symbol} changed hands.",
    )


def _largest_rise(material: Material) -> Draft | None:
    company, week = material.company(), material.one(material.weeks)
    closes = closes_of(material, company, week)
    rise = max(after - before for before, after in pairwise(closes))
    if rise <= 0:
        return None
    steps = ["[b - a for a, b in zip(data, data[1:])]", "max(data)"]
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=_slots(company, week),
        steps=(
            bars_step(company, week),
            Step(tool="create_data_pipeline", free={"pipeline_steps": steps, "input_data": json.dumps(closes)}),
        ),
        answer=asked(rise, at_most=8),
        says=f"The largest rise from one close to the next was ${rise:.2f}.",
    )


TRADING = (
    Family(
        name="bar-of-day",
        difficulty=Difficulty.EASY,
        wordings=(
            "What was the {what} of {symbol} on {day}? Two decimals.",
            "Look up the daily bar of {name} ({symbol}) for {day} and give me the {what}, to the cent.",
            "On {day}, what {what} did {symbol} have? Answer in dollars with two decimals.",
            "From Polygon's daily prices of {symbol}: the {what} on {day}, to two decimals.",
        ),
        held_out=("Go back to {day}: what was {symbol}'s {what} on that day, in dollars and cents?",),
        draw=_bar_of_day,
    ),
    Family(
        name="week-average",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "What was the average daily close of {symbol} from {start} to {end}? Compute it with Python, two decimals.",
            "Get the daily bars of {name} ({symbol}) between {start} and {end} and average the closing prices in "
            "Python, to the cent.",
            "With Python, work out the mean closing price of {symbol} over the days {start} through {end}. Two "
            "decimals.",
            "Average close of {symbol}, {start} to {end}, calculated in Python and rounded to two decimals, please.",
        ),
        held_out=(
            "At what price did {symbol} close on average in the days from {start} up to {end}? Let Python do the sum; "
            "two decimals.",
        ),
        draw=_week_average,
    ),
    Family(
        name="week-return",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "By how many percent did {symbol} move from its close on {start} to its close on {end}? Python, signed, "
            "two decimals.",
            "Use the daily bars of {name} ({symbol}) from {start} to {end} and compute in Python the change from the "
            "first close to the last, in percent, signed, two decimals.",
            "How did {symbol} do between the closes of {start} and {end}? Compute the percent change in Python; "
            "signed, two decimals.",
            "Percent return of {symbol} from the {start} close to the {end} close, computed with Python, signed, two "
            "decimals.",
        ),
        held_out=(
            "Had I bought {symbol} at the close of {start} and sold at the close of {end}, what would my return be? "
            "Python; signed percent, two decimals.",
        ),
        draw=_week_return,
    ),
    Family(
        name="week-volume",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "How many shares of {symbol} were traded in all from {start} to {end}? Add up the daily volumes with "
            "process_mcp_data and give the exact number.",
            "Sum the daily volumes of {name} ({symbol}) between {start} and {end} with process_mcp_data and give me "
            "the exact total.",
            "Fetch {symbol}'s daily bars from {start} to {end}, pass the volumes to process_mcp_data, and report their "
            "sum as a whole number.",
            "Total trading volume of {symbol}, {start} through {end}: let process_mcp_data add it up. Exact number.",
        ),
        held_out=(
            "Exactly how many {symbol} shares changed hands over the days {start} to {end}? Use process_mcp_data to "
            "add up the volumes.",
        ),
        draw=_week_volume,
    ),
    Family(
        name="largest-rise",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "What was the largest rise of {symbol} from one daily close to the next between {start} and {end}, in "
            "dollars? Use create_data_pipeline: first the differences, then their maximum. Two decimals.",
            "Take the daily closes of {name} ({symbol}) from {start} to {end} and build a pipeline with "
            "create_data_pipeline that computes the differences and then the biggest one. In dollars, to the cent.",
            "With create_data_pipeline, find the biggest gain in dollars between two consecutive closes of {symbol} "
            "from {start} to {end}. Two decimals.",
            "Run a data pipeline (create_data_pipeline) over {symbol}'s closes of {start} through {end}: differences, "
            "then maximum. Report the largest rise in dollars with two decimals.",
        ),
        held_out=(
            "Between {start} and {end}, on which step from close to close did {symbol} gain most, and how many dollars "
            "was it? Let create_data_pipeline compute the differences and the maximum; two decimals.",
        ),
        draw=_largest_rise,
    ),
)


# Two results closer than this are no clear question.
_CLEAR = 0.02


def _portfolio(material: Material) -> Draft:
    companies, room = material.several(3), material.room()
    shares = [material.draws.integer(2, 60) * 5 for _ in companies]
    prices = [material.quote(company).price for company in companies]
    value = sum(count * price for count, price in zip(shares, prices, strict=True))
    sum_of = " + ".join(f"{count} * {price}" for count, price in zip(shares, prices, strict=True))
    holdings = [f"{count} shares of {company.symbol}" for count, company in zip(shares, companies, strict=True)]
    return Draft(
        entities=tuple(sorted(company.symbol for company in companies)),
        slots={"holdings": f"{holdings[0]}, {holdings[1]} and {holdings[2]}", "room": room.name},
        steps=(
            *(Step(tool="fmp_get_quote", matters={"symbol": company.symbol}) for company in companies),
            python(sum_of),
            posting(room, f"The portfolio is worth ${value:.2f}."),
        ),
        answer=asked(value),
        says=f"The portfolio is worth ${value:.2f}; I posted that to #{room.name}.",
        state=(posted(room, value, 2),),
        in_any_order=True,
    )


def _growth_duel(material: Material) -> Draft | None:
    companies, room = material.several(2), material.room()
    pairs = [tuple(statement.revenue for statement in material.statements(company)[:2]) for company in companies]
    growths = [(new / old - 1) * 100 for new, old in pairs]
    if abs(growths[0] - growths[1]) < _CLEAR:
        return None
    winner = max((0, 1), key=lambda i: growths[i])
    symbol, growth = companies[winner].symbol, growths[winner]
    return Draft(
        entities=tuple(sorted(company.symbol for company in companies)),
        slots={
            "symbol": companies[0].symbol,
            "other": companies[1].symbol,
            "name": companies[0].name,
            "other_name": companies[1].name,
            "room": room.name,
        },
        steps=(
            *(Step(tool="fmp_get_income_statement", matters={"symbol": company.symbol}) for company in companies),
            python(*(f"({new} / {old} - 1) * 100" for new, old in pairs)),
            posting(room, f"{symbol} grew more: revenue {growth:+.2f}%."),
        ),
        answer=asked(growth),
        says=f"{symbol} grew more, by {growth:+.2f}%; I told #{room.name}.",
        state=(posted(room, growth, 2, symbol, instead_of=(companies[1 - winner].symbol,)),),
        in_any_order=True,
    )


def _best_week(material: Material) -> Draft | None:
    companies, room, week = material.several(3), material.room(), material.one(material.weeks)
    ends = [(closes[0], closes[-1]) for closes in (closes_of(material, company, week) for company in companies)]
    gains = [(last / first - 1) * 100 for first, last in ends]
    best = max(range(3), key=lambda i: gains[i])
    if any(i != best and gains[best] - gain < _CLEAR for i, gain in enumerate(gains)):
        return None
    symbols = [company.symbol for company in companies]
    return Draft(
        entities=(*sorted(symbols), week[0].isoformat()),
        slots={
            "symbols": f"{symbols[0]}, {symbols[1]} and {symbols[2]}",
            "start": week[0].isoformat(),
            "end": week[1].isoformat(),
            "purpose": room.purpose,
        },
        steps=(
            *(bars_step(company, week) for company in companies),
            python(*(f"({last} / {first} - 1) * 100" for first, last in ends)),
            Step(tool="list_slack_channels"),
            posting(room, f"Best of the three: {symbols[best]} with {gains[best]:+.2f}%."),
        ),
        answer=asked(gains[best], at_most=8),
        says=f"{symbols[best]} did best with {gains[best]:+.2f}%; I posted that to #{room.name}.",
        state=(posted(room, gains[best], 2, symbols[best], instead_of=[s for s in symbols if s != symbols[best]]),),
        in_any_order=True,
    )


def _post_by_direction(material: Material) -> Draft | None:
    company = material.company()
    up, down = material.draws.some(material.rooms, 2)
    quote = material.quote(company)
    if quote.change == 0 or [found.symbol for found in material.market.search(company.name, 10)] != [company.symbol]:
        return None
    room, word = (up, "up") if quote.change > 0 else (down, "down")
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name, "up": up.name, "down": down.name},
        steps=(
            Step(tool="fmp_search_ticker", free={"query": company.name}),
            Step(tool="fmp_get_change_percent", matters={"symbol": company.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            posting(room, f"{company.symbol} is {word} today, at ${quote.price:.2f}."),
        ),
        answer=asked(quote.price),
        says=f"{company.symbol} is {word} today, at ${quote.price:.2f}; I told #{room.name}.",
        state=(posted(room, quote.price, 2, company.symbol),),
        in_any_order=True,
    )


REPORTS = (
    Family(
        name="portfolio",
        difficulty=Difficulty.HARD,
        wordings=(
            "I hold {holdings}. Get the current prices, compute the total value in Python to two decimals, post it to "
            "#{room}, and tell me the value.",
            "What are {holdings} worth together right now? Use Python for the sum (two decimals), send the total to "
            "#{room} and report it here.",
            "Value this portfolio at current prices: {holdings}. Compute with Python, two decimals; post the result in "
            "#{room} and repeat it to me.",
            "Tell #{room} on Slack what a portfolio of {holdings} is worth at the moment, computed in Python to the "
            "cent, and answer with the same figure.",
        ),
        held_out=(
            "Someone owns {holdings}. Work out in Python, from current quotes, how much money that is (two decimals), "
            "let #{room} know, and let me know.",
        ),
        draw=_portfolio,
    ),
    Family(
        name="growth-duel",
        difficulty=Difficulty.HARD,
        wordings=(
            "Which grew its revenue more from the fiscal year before last to the last one, {symbol} or {other}? "
            "Compute with Python; post only the winner's ticker and its growth in percent (signed, two decimals) to "
            "#{room}, and tell me that growth.",
            "Compare the annual revenue growth of {name} ({symbol}) and {other_name} ({other}) over their last two "
            "income statements with Python. Send the better one's ticker and growth (signed percent, two decimals) to "
            "#{room}, without naming the other, and report it here.",
            "{symbol} against {other}: whose annual revenue grew by more percent? Use Python. Announce just the winner "
            "in #{room} with its signed growth to two decimals, and answer with the growth.",
            "From the last two annual income statements of {symbol} and {other}, compute revenue growth in Python. "
            "Post the ticker and growth of the faster one (signed percent, two decimals), not the other, to #{room}; "
            "repeat the figure to me.",
        ),
        held_out=(
            "I am choosing between {other} and {symbol}. Take the one whose revenue rose more in percent in the last "
            "fiscal year (Python, two decimals, signed), name only that ticker with its growth in #{room}, and give me "
            "the growth.",
        ),
        draw=_growth_duel,
    ),
    Family(
        name="best-week",
        difficulty=Difficulty.HARD,
        wordings=(
            "Which of {symbols} had the best return from the close of {start} to the close of {end}? Compute with "
            "Python, then post only the best one's ticker and return (signed percent, two decimals) to the channel for "
            '"{purpose}", and tell me the return.',
            "Compare {symbols} by their change between the closes of {start} and {end}, in Python. Find the Slack "
            'channel with the purpose "{purpose}", announce there just the winner with its signed percent (two '
            "decimals), and report the figure.",
            "Get daily bars from {start} to {end} for {symbols}. Use Python to see which gained most from first close "
            "to last, and send that ticker alone with its percentage (signed, two decimals) to the channel meant for "
            '"{purpose}". Answer with the percentage.',
            'For the channel described as "{purpose}": the best of {symbols} from the {start} close to the {end} '
            "close, with its return as a signed percentage to two decimals and without the others. Compute in Python, "
            "post it, and repeat the return to me.",
        ),
        held_out=(
            "Rank {symbols} by return, close of {start} to close of {end}, with Python. The top ticker and its return "
            "(signed percent, two decimals), and no other ticker, go to the Slack channel whose purpose is "
            '"{purpose}". Then tell me that return.',
        ),
        draw=_best_week,
    ),
    Family(
        name="post-by-direction",
        difficulty=Difficulty.HARD,
        wordings=(
            "Find the ticker of {name} and its percent change today. If it is up, post ticker and current price (two "
            "decimals) to #{up}, otherwise to #{down}. Tell me the price too.",
            "Look up the symbol of {name}, check today's percent change, and get the price. Up: send ticker and price "
            "to #{up}. Down: to #{down}. Two decimals; repeat the price to me.",
            "#{up} wants to hear of stocks that rose today, #{down} of those that fell. Find {name}'s ticker, check "
            "its percent change, post ticker and current price (two decimals) where it belongs, and report the price.",
            "Depending on whether {name} has gained or lost today (look up ticker and percent change), write its "
            "ticker and price, two decimals, to #{up} (gained) or #{down} (lost). Answer with the price.",
        ),
        held_out=(
            "Is {name} in plus or in minus today? You need its ticker and percent change. In plus: ticker and current "
            "price to #{up}; in minus: to #{down}. Two decimals, and tell me the price.",
        ),
        draw=_post_by_direction,
    ),
)
