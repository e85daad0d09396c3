"""Tasks with a post or a report: several calls, often a computation in Python, and a message to the right channel."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise

from mcprl_market.generation.drafts import (
    HARD,
    MEDIUM,
    SIDES,
    Draft,
    Material,
    asked,
    bars_step,
    call,
    family,
    movers_step,
    named,
    posted,
    posting,
    python,
    span,
    stored,
)

# If two results are closer than this, asking which is larger has no clear answer.
_CLEAR = 0.02


@family(
    MEDIUM,
    "Post the current price of {symbol} to #{room}, with its ticker and two decimals, and tell me the price too.",
    "Get the price of {name} ({symbol}) and send it to #{room} on Slack (ticker and price, two decimals). Then report "
    "it here.",
    "Let #{room} know what {symbol} trades at, to the cent and with the ticker. Repeat the price to me.",
    "Look up {symbol}'s price, write it with the ticker to the channel #{room}, two decimals, and answer with the "
    "price.",
    "The people in #{room} want to know what {symbol} costs right now. Tell them there (ticker, two decimals), and "
    "tell me.",
)
def post_price(material: Material) -> Draft:
    company, room = material.company(), material.room()
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol, room.name),
        slots=named(company, room=room.name),
        steps=(
            call("fmp_get_quote", symbol=company.symbol),
            posting(room, f"{company.symbol} trades at ${price:.2f}."),
        ),
        answer=asked(price),
        says=f"Posted to #{room.name}: {company.symbol} trades at ${price:.2f}.",
        state=(posted(room, price, company.symbol),),
    )


@family(
    MEDIUM,
    'Find the Slack channel whose purpose is "{purpose}" and post today\'s percent change of {symbol} there: ticker, '
    "sign, two decimals. Tell me the figure too.",
    "How has {name} ({symbol}) moved today, in percent? Post it with the ticker, signed, two decimals, to the channel "
    'for "{purpose}", and report it here.',
    "Get {symbol}'s change in percent (signed, two decimals) and send it with the ticker to the channel that is meant "
    'for "{purpose}". Repeat the figure to me.',
    'One of our Slack channels has the purpose "{purpose}". Post {symbol} and its percent change of today there, '
    "signed, two decimals, and answer with the figure.",
    'Today\'s move of {symbol} (ticker, signed percent, two decimals) belongs in the channel described as "{purpose}". '
    "Post it there and tell me the number.",
)
def post_change(material: Material) -> Draft:
    company, room = material.company(), material.room()
    change = material.quote(company).change_percent
    return Draft(
        entities=(company.symbol, room.name),
        slots=named(company, purpose=room.purpose),
        steps=(
            call("list_slack_channels"),
            call("fmp_get_change_percent", symbol=company.symbol),
            posting(room, f"{company.symbol} has moved {change:+.2f}% today."),
        ),
        answer=asked(change),
        says=f"I told #{room.name} that {company.symbol} has moved {change:+.2f}% today.",
        state=(posted(room, change, company.symbol),),
        in_any_order=True,
    )


@family(
    MEDIUM,
    "Store the current price of {symbol} (two decimals) under the key {key}, read it back to be sure, and tell me the "
    "stored value.",
    "Get the price of {name} ({symbol}), keep it as {key}, then fetch {key} again and report what is in it. Two "
    "decimals.",
    "Save what {symbol} trades at now, to the cent, in the execution context as {key}. Then load {key} and give me "
    "the number.",
    "Put {symbol}'s price with two decimals into {key}, check it by reading {key} back, and answer with it.",
    "I will need {symbol}'s price later: remember it to the cent under {key}, retrieve it once to check, and tell me "
    "what you retrieved.",
)
def keep_price(material: Material) -> Draft:
    company = material.company()
    price = material.quote(company).price
    key = f"{company.symbol.lower()}_price"
    return Draft(
        entities=(company.symbol,),
        slots=named(company, key=key),
        steps=(
            call("fmp_get_quote", symbol=company.symbol),
            call("store_execution_result", context_key=key, free={"data": f"{price:.2f}"}),
            call("get_execution_context", context_key=key),
        ),
        answer=asked(price),
        says=f"{price:.2f} is stored under {key}.",
        state=(stored(key, price),),
    )


@family(
    HARD,
    "I hold {holdings}. Get the current prices, compute the total value in Python to two decimals, post it to "
    "#{room}, and tell me the value.",
    "What are {holdings} worth together right now? Use Python for the sum (two decimals), send the total to #{room} "
    "and report it here.",
    "Value this portfolio at current prices: {holdings}. Compute with Python, two decimals; post the result in "
    "#{room} and repeat it to me.",
    "Tell #{room} on Slack what a portfolio of {holdings} is worth at the moment, computed in Python to the cent, and "
    "answer with the same figure.",
    "Someone owns {holdings}. Work out in Python, from current quotes, how much money that is (two decimals), let "
    "#{room} know, and let me know.",
)
def portfolio(material: Material) -> Draft:
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
            *(call("fmp_get_quote", symbol=company.symbol) for company in companies),
            python(sum_of),
            posting(room, f"The portfolio is worth ${value:.2f}."),
        ),
        answer=asked(value),
        says=f"The portfolio is worth ${value:.2f}; I posted that to #{room.name}.",
        state=(posted(room, value),),
        in_any_order=True,
    )


@family(
    HARD,
    "Which grew its revenue more from the fiscal year before last to the last one, {symbol} or {other}? Compute with "
    "Python; post only the winner's ticker and its growth in percent (signed, two decimals) to #{room}, and tell me "
    "that growth.",
    "Compare the annual revenue growth of {name} ({symbol}) and {other_name} ({other}) over their last two income "
    "statements with Python. Send the better one's ticker and growth (signed percent, two decimals) to #{room}, "
    "without naming the other, and report it here.",
    "{symbol} against {other}: whose annual revenue grew by more percent? Use Python. Announce just the winner in "
    "#{room} with its signed growth to two decimals, and answer with the growth.",
    "From the last two annual income statements of {symbol} and {other}, compute revenue growth in Python. Post the "
    "ticker and growth of the faster one (signed percent, two decimals), not the other, to #{room}; repeat the figure "
    "to me.",
    "I am choosing between {other} and {symbol}. Take the one whose revenue rose more in percent in the last fiscal "
    "year (Python, two decimals, signed), name only that ticker with its growth in #{room}, and give me the growth.",
)
def growth_duel(material: Material) -> Draft | None:
    companies, room = material.several(2), material.room()
    pairs = [tuple(statement.revenue for statement in material.statements(company)[:2]) for company in companies]
    growths = [(new / old - 1) * 100 for new, old in pairs]
    if abs(growths[0] - growths[1]) < _CLEAR:
        return None
    winner = max((0, 1), key=lambda i: growths[i])
    symbol, growth = companies[winner].symbol, growths[winner]
    return Draft(
        entities=tuple(sorted(company.symbol for company in companies)),
        slots=named(*companies, room=room.name),
        steps=(
            *(call("fmp_get_income_statement", symbol=company.symbol) for company in companies),
            python(*(f"({new} / {old} - 1) * 100" for new, old in pairs)),
            posting(room, f"{symbol} grew more: revenue {growth:+.2f}%."),
        ),
        answer=asked(growth),
        says=f"{symbol} grew more, by {growth:+.2f}%; I told #{room.name}.",
        state=(posted(room, growth, symbol, instead_of=(companies[1 - winner].symbol,)),),
        in_any_order=True,
    )


@family(
    HARD,
    "Which of {symbols} had the best return from the close of {start} to the close of {end}? Compute with Python, "
    'then post only the best one\'s ticker and return (signed percent, two decimals) to the channel for "{purpose}", '
    "and tell me the return.",
    "Compare {symbols} by their change between the closes of {start} and {end}, in Python. Find the Slack channel "
    'with the purpose "{purpose}", announce there just the winner with its signed percent (two decimals), and report '
    "the figure.",
    "Get daily bars from {start} to {end} for {symbols}. Use Python to see which gained most from first close to "
    "last, and send that ticker alone with its percentage (signed, two decimals) to the channel meant for "
    '"{purpose}". Answer with the percentage.',
    'For the channel described as "{purpose}": the best of {symbols} from the {start} close to the {end} close, with '
    "its return as a signed percentage to two decimals and without the others. Compute in Python, post it, and repeat "
    "the return to me.",
    "Rank {symbols} by return, close of {start} to close of {end}, with Python. The top ticker and its return (signed "
    'percent, two decimals), and no other ticker, go to the Slack channel whose purpose is "{purpose}". Then tell me '
    "that return.",
)
def best_week(material: Material) -> Draft | None:
    companies, room, week = material.several(3), material.room(), material.one(material.weeks)
    ends = [(closes[0], closes[-1]) for closes in (material.closes(company, week) for company in companies)]
    gains = [(last / first - 1) * 100 for first, last in ends]
    best = max(range(3), key=lambda i: gains[i])
    if any(i != best and gains[best] - gain < _CLEAR for i, gain in enumerate(gains)):
        return None
    symbols = [company.symbol for company in companies]
    return Draft(
        entities=(*sorted(symbols), week[0].isoformat()),
        slots={"symbols": f"{symbols[0]}, {symbols[1]} and {symbols[2]}", **span(week), "purpose": room.purpose},
        steps=(
            *(bars_step(company, week) for company in companies),
            python(*(f"({last} / {first} - 1) * 100" for first, last in ends)),
            call("list_slack_channels"),
            posting(room, f"Best of the three: {symbols[best]} with {gains[best]:+.2f}%."),
        ),
        answer=asked(gains[best], at_most=8),
        says=f"{symbols[best]} did best with {gains[best]:+.2f}%; I posted that to #{room.name}.",
        state=(posted(room, gains[best], symbols[best], instead_of=[s for s in symbols if s != symbols[best]]),),
        in_any_order=True,
    )


@family(
    HARD,
    "Find the ticker of {name} and its percent change today. If it is up, post ticker and current price (two "
    "decimals) to #{up}, otherwise to #{down}. Tell me the price too.",
    "Look up the symbol of {name}, check today's percent change, and get the price. Up: send ticker and price to "
    "#{up}. Down: to #{down}. Two decimals; repeat the price to me.",
    "#{up} wants to hear of stocks that rose today, #{down} of those that fell. Find {name}'s ticker, check its "
    "percent change, post ticker and current price (two decimals) where it belongs, and report the price.",
    "Depending on whether {name} has gained or lost today (look up ticker and percent change), write its ticker and "
    "price, two decimals, to #{up} (gained) or #{down} (lost). Answer with the price.",
    "Is {name} in plus or in minus today? You need its ticker and percent change. In plus: ticker and current price "
    "to #{up}; in minus: to #{down}. Two decimals, and tell me the price.",
)
def post_by_direction(material: Material) -> Draft | None:
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
            call("fmp_search_ticker", free={"query": company.name}),
            call("fmp_get_change_percent", symbol=company.symbol),
            call("fmp_get_quote", symbol=company.symbol),
            posting(room, f"{company.symbol} is {word} today, at ${quote.price:.2f}."),
        ),
        answer=asked(quote.price),
        says=f"{company.symbol} is {word} today, at ${quote.price:.2f}; I told #{room.name}.",
        state=(posted(room, quote.price, company.symbol),),
        in_any_order=True,
    )


@family(
    HARD,
    "Compute in Python the sample standard deviation of the daily percent changes between the closes of {symbol} from "
    "{start} to {end}. Store it under {key}, post it with the ticker to #{room}, and tell me. Two decimals.",
    "How volatile was {name} ({symbol}) from {start} to {end}? Take the daily closes, use Python for the sample "
    "standard deviation of their day-to-day changes in percent, keep it as {key}, send ticker and figure to #{room}, "
    "and report it. Two decimals.",
    "Get {symbol}'s daily bars of {start} to {end}; with Python find the sample standard deviation of the percent "
    "changes from close to close (two decimals); save it as {key}; tell #{room} (with the ticker); answer with it.",
    "I need the volatility of {symbol}, {start} through {end}: sample standard deviation of close-to-close percent "
    "changes, Python, two decimals. Save under {key}, post to #{room} with the ticker, and give me the figure.",
    "Measure how much {symbol} swung between {start} and {end}: in Python, the sample standard deviation of "
    "day-to-day percent changes of the close, two decimals. It goes into {key}, to #{room} (with the ticker), and to "
    "me.",
)
def volatility(material: Material) -> Draft:
    company, room, week = material.company(), material.room(), material.one(material.weeks)
    closes = material.closes(company, week)
    value = statistics.stdev((after / before - 1) * 100 for before, after in pairwise(closes))
    key = f"{company.symbol.lower()}_volatility"
    given = (
        f"closes = {closes}\nchanges = [(b / a - 1) * 100 for a, b in zip(closes, closes[1:])]\n"
        "mean = sum(changes) / len(changes)\nvariance = sum((c - mean) ** 2 for c in changes) / (len(changes) - 1)"
    )
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots=named(company, **span(week), key=key, room=room.name),
        steps=(
            bars_step(company, week),
            python("variance**0.5", given=given),
            call("store_execution_result", context_key=key, free={"data": f"{value:.2f}"}),
            posting(room, f"Volatility of {company.symbol}: {value:.2f}%."),
        ),
        answer=asked(value, at_most=8),
        says=f"The volatility of {company.symbol} was {value:.2f}%; it is stored and posted to #{room.name}.",
        state=(
            posted(room, value, company.symbol),
            stored(key, value),
        ),
        in_any_order=True,
    )


@family(
    HARD,
    "What is the correlation of the daily closes of {symbol} and {other} from {start} to {end}? Let "
    "analyze_financial_data find it, two decimals; post it with both tickers to #{room} and tell me.",
    "Get the daily bars of {symbol} and {other} between {start} and {end}, run a correlation analysis on the closing "
    "prices with analyze_financial_data (two decimals), send it to #{room} with both tickers, and report it.",
    "Do {symbol} and {other} move together? Correlate their closes of {start} to {end} with analyze_financial_data, "
    "two decimals. Tell #{room}, naming both tickers, and answer with the figure.",
    "Correlation of the closing prices of {symbol} and {other}, {start} through {end}, by analyze_financial_data, to "
    "two decimals: post it and both tickers in #{room}, and repeat it to me.",
    "How closely did the closes of {other} follow those of {symbol} from {start} to {end}? Give the correlation "
    "coefficient that analyze_financial_data finds, two decimals, to #{room} with both tickers and to me.",
)
def correlation(material: Material) -> Draft:
    (first, second), room, week = material.several(2), material.room(), material.one(material.weeks)
    one, two = material.closes(first, week), material.closes(second, week)
    value = statistics.correlation(one, two)
    table = json.dumps({first.symbol: one, second.symbol: two})
    return Draft(
        entities=(*sorted((first.symbol, second.symbol)), week[0].isoformat()),
        slots=named(first, second, **span(week), room=room.name),
        steps=(
            bars_step(first, week),
            bars_step(second, week),
            call("analyze_financial_data", analysis_type="correlation", free={"data": table}),
            posting(room, f"Correlation of {first.symbol} and {second.symbol}: {value:.2f}."),
        ),
        answer=asked(value, at_most=8),
        says=f"The correlation of {first.symbol} and {second.symbol} was {value:.2f}; I posted it to #{room.name}.",
        state=(posted(room, value, first.symbol, second.symbol),),
        in_any_order=True,
    )


@family(
    HARD,
    "Compute the price-to-sales ratio of {symbol} in Python: market cap over revenue of the last fiscal year, two "
    "decimals. Post it with the ticker to #{room} and tell me.",
    "How many times its last annual revenue is {name} ({symbol}) worth by market cap? Python, two decimals; send "
    "ticker and ratio to #{room}, and report the ratio.",
    "Divide the market cap of {symbol} by its latest annual revenue with Python (two decimals), let #{room} know the "
    "ratio and the ticker, and answer with the ratio.",
    "For #{room}: the market cap of {symbol} as a multiple of its revenue in the last fiscal year, computed in Python "
    "to two decimals. Post it with the ticker and repeat it to me.",
    "Is {symbol} expensive? Take its market cap and its last annual revenue, divide them in Python (two decimals), "
    "share ticker and ratio in #{room}, and tell me the ratio.",
)
def value_to_sales(material: Material) -> Draft | None:
    company, room = material.company(), material.room()
    value, revenue = material.quote(company).market_cap, material.statements(company)[0].revenue
    if value is None:
        return None
    ratio = value / revenue
    return Draft(
        entities=(company.symbol,),
        slots=named(company, room=room.name),
        steps=(
            call("fmp_get_quote", symbol=company.symbol),
            call("fmp_get_income_statement", symbol=company.symbol),
            python(f"{value} / {revenue}"),
            posting(room, f"{company.symbol} is valued at {ratio:.2f} times its sales."),
        ),
        answer=asked(ratio),
        says=f"{company.symbol} is valued at {ratio:.2f} times its sales; I told #{room.name}.",
        state=(posted(room, ratio, company.symbol),),
        in_any_order=True,
    )


@family(
    HARD,
    "Take {place} on today's list of {side}s and compute its operating margin of the last fiscal year in Python "
    "(percent, two decimals). Post ticker and margin to #{room} and tell me the margin.",
    "Who is {place} among today's {side}s? Use its annual income statement and Python to get operating income in "
    "percent of revenue, two decimals; send it with the ticker to #{room} and report it.",
    "Find {place} of the {side}s today, get its annual income statement, compute the operating margin with Python "
    "(two decimals, percent), tell #{room} ticker and margin, and answer with the margin.",
    "For today's {side} {place}: operating income as a percentage of revenue in the last fiscal year, by Python, two "
    "decimals. Post it in #{room} with the ticker; repeat it to me.",
    "The {side} that is {place} today: does it earn money? Work out its last annual operating margin in Python "
    "(percent, two decimals), share it with the ticker in #{room}, and give me the number.",
)
def mover_margin(material: Material) -> Draft | None:
    side, rank, room = material.one(SIDES), material.one(material.ranks), material.room()
    quote = material.mover(side, rank)
    if quote is None:
        return None
    symbol, statement = quote.symbol, material.statements(quote)[0]
    margin = statement.operating_income / statement.revenue * 100
    return Draft(
        entities=(side, str(rank)),
        slots={"place": f"number {rank}", "side": side, "room": room.name},
        steps=(
            movers_step(side, rank),
            call("fmp_get_income_statement", symbol=symbol),
            python(f"{statement.operating_income} / {statement.revenue} * 100"),
            posting(room, f"{symbol} has an operating margin of {margin:.2f}%."),
        ),
        answer=asked(margin),
        says=f"It is {symbol}, with an operating margin of {margin:.2f}%; I posted that to #{room.name}.",
        state=(posted(room, margin, symbol),),
    )


@family(
    HARD,
    "How many percentage points lie between number {rank} of today's gainers and number {rank} of the losers? Compute "
    "with Python, two decimals; post it with both tickers to #{room} and tell me.",
    "Take place {rank} of the gainers and place {rank} of the losers, subtract the second percent change from the "
    "first in Python (two decimals), send the spread and both tickers to #{room}, and report it.",
    "Use Python to find the gap in percentage points between the changes of the gainer in place {rank} and the loser "
    "in place {rank}, two decimals. Tell #{room} with both tickers and answer with the gap.",
    "Post to #{room} how far apart number {rank} of the gainers and number {rank} of the losers are today, in "
    "percentage points (Python, two decimals), with both tickers; repeat the figure to me.",
    "Gainer number {rank} minus loser number {rank}: what is the difference of their percent changes today? Python, "
    "two decimals. Let #{room} know it with both tickers, and me.",
)
def movers_spread(material: Material) -> Draft | None:
    rank, room = material.one(material.ranks), material.one(material.channels)
    up, down = (material.mover(side, rank) for side in SIDES)
    if up is None or down is None:
        return None
    spread = up.change_percent - down.change_percent
    return Draft(
        entities=(str(rank), room.name),
        slots={"rank": str(rank), "room": room.name},
        steps=(
            movers_step("gainer", rank),
            movers_step("loser", rank),
            python(f"{up.change_percent} - ({down.change_percent})"),
            posting(room, f"{up.symbol} and {down.symbol} are {spread:.2f} points apart."),
        ),
        answer=asked(spread),
        says=f"{up.symbol} and {down.symbol} are {spread:.2f} percentage points apart; I told #{room.name}.",
        state=(posted(room, spread, up.symbol, down.symbol),),
        in_any_order=True,
    )
