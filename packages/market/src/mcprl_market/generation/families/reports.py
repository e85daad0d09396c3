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


@family(MEDIUM)
def post_price(material: Material) -> Draft:
    company, room = material.company(), material.room()
    price = material.quote(company).price
    steps = (call("fmp_get_quote", symbol=company.symbol), posting(room, f"{company.symbol} trades at ${price:.2f}."))
    says = f"Posted to #{room.name}: {company.symbol} trades at ${price:.2f}."
    state = (posted(room, price, company.symbol),)
    return Draft((company.symbol, room.name), named(company, room=room.name), steps, asked(price), says, state=state)


@family(MEDIUM)
def post_change(material: Material) -> Draft:
    company, room = material.company(), material.room()
    change = material.quote(company).change_percent
    slots = named(company, purpose=room.purpose)
    steps = (
        call("list_slack_channels"),
        call("fmp_get_change_percent", symbol=company.symbol),
        posting(room, f"{company.symbol} has moved {change:+.2f}% today."),
    )
    says = f"I told #{room.name} that {company.symbol} has moved {change:+.2f}% today."
    state = (posted(room, change, company.symbol),)
    return Draft((company.symbol, room.name), slots, steps, asked(change), says, state=state, in_any_order=True)


@family(MEDIUM)
def keep_price(material: Material) -> Draft:
    company = material.company()
    price = material.quote(company).price
    key = f"{company.symbol.lower()}_price"
    steps = (
        call("fmp_get_quote", symbol=company.symbol),
        call("store_execution_result", context_key=key, free={"data": f"{price:.2f}"}),
        call("get_execution_context", context_key=key),
    )
    says = f"{price:.2f} is stored under {key}."
    return Draft((company.symbol,), named(company, key=key), steps, asked(price), says, state=(stored(key, price),))


@family(HARD)
def portfolio(material: Material) -> Draft:
    companies, room = material.several(3), material.room()
    shares = [material.draws.integer(2, 60) * 5 for _ in companies]
    prices = [material.quote(company).price for company in companies]
    value = sum(count * price for count, price in zip(shares, prices, strict=True))
    sum_of = " + ".join(f"{count} * {price}" for count, price in zip(shares, prices, strict=True))
    holdings = [f"{count} shares of {company.symbol}" for count, company in zip(shares, companies, strict=True)]
    entities = tuple(sorted(company.symbol for company in companies))
    slots = {"holdings": f"{holdings[0]}, {holdings[1]} and {holdings[2]}", "room": room.name}
    steps = (
        *(call("fmp_get_quote", symbol=company.symbol) for company in companies),
        python(sum_of),
        posting(room, f"The portfolio is worth ${value:.2f}."),
    )
    says = f"The portfolio is worth ${value:.2f}; I posted that to #{room.name}."
    return Draft(entities, slots, steps, asked(value), says, state=(posted(room, value),), in_any_order=True)


@family(HARD)
def growth_duel(material: Material) -> Draft | None:
    companies, room = material.several(2), material.room()
    pairs = [tuple(statement.revenue for statement in material.statements(company)[:2]) for company in companies]
    growths = [(new / old - 1) * 100 for new, old in pairs]
    if abs(growths[0] - growths[1]) < _CLEAR:
        return None
    winner = max((0, 1), key=lambda i: growths[i])
    symbol, growth = companies[winner].symbol, growths[winner]
    entities = tuple(sorted(company.symbol for company in companies))
    steps = (
        *(call("fmp_get_income_statement", symbol=company.symbol) for company in companies),
        python(*(f"({new} / {old} - 1) * 100" for new, old in pairs)),
        posting(room, f"{symbol} grew more: revenue {growth:+.2f}%."),
    )
    answer = asked(growth)
    says = f"{symbol} grew more, by {growth:+.2f}%; I told #{room.name}."
    state = (posted(room, growth, symbol, instead_of=(companies[1 - winner].symbol,)),)
    return Draft(entities, named(*companies, room=room.name), steps, answer, says, state=state, in_any_order=True)


@family(HARD)
def best_week(material: Material) -> Draft | None:
    companies, room, week = material.several(3), material.room(), material.one(material.weeks)
    ends = [(closes[0], closes[-1]) for closes in (material.closes(company, week) for company in companies)]
    gains = [(last / first - 1) * 100 for first, last in ends]
    best = max(range(3), key=lambda i: gains[i])
    if any(i != best and gains[best] - gain < _CLEAR for i, gain in enumerate(gains)):
        return None
    symbols = [company.symbol for company in companies]
    slots = {"symbols": f"{symbols[0]}, {symbols[1]} and {symbols[2]}", **span(week), "purpose": room.purpose}
    steps = (
        *(bars_step(company, week) for company in companies),
        python(*(f"({last} / {first} - 1) * 100" for first, last in ends)),
        call("list_slack_channels"),
        posting(room, f"Best of the three: {symbols[best]} with {gains[best]:+.2f}%."),
    )
    answer = asked(gains[best], at_most=8)
    says = f"{symbols[best]} did best with {gains[best]:+.2f}%; I posted that to #{room.name}."
    state = (posted(room, gains[best], symbols[best], instead_of=[s for s in symbols if s != symbols[best]]),)
    return Draft((*sorted(symbols), week[0].isoformat()), slots, steps, answer, says, state=state, in_any_order=True)


@family(HARD)
def post_by_direction(material: Material) -> Draft | None:
    company = material.company()
    up, down = material.draws.some(material.rooms, 2)
    quote = material.quote(company)
    if quote.change == 0 or [found.symbol for found in material.market.search(company.name, 10)] != [company.symbol]:
        return None
    room, word = (up, "up") if quote.change > 0 else (down, "down")
    slots = {"name": company.name, "up": up.name, "down": down.name}
    steps = (
        call("fmp_search_ticker", free={"query": company.name}),
        call("fmp_get_change_percent", symbol=company.symbol),
        call("fmp_get_quote", symbol=company.symbol),
        posting(room, f"{company.symbol} is {word} today, at ${quote.price:.2f}."),
    )
    says = f"{company.symbol} is {word} today, at ${quote.price:.2f}; I told #{room.name}."
    state = (posted(room, quote.price, company.symbol),)
    return Draft((company.symbol,), slots, steps, asked(quote.price), says, state=state, in_any_order=True)


@family(HARD)
def volatility(material: Material) -> Draft:
    company, room, week = material.company(), material.room(), material.one(material.weeks)
    closes = material.closes(company, week)
    value = statistics.stdev((after / before - 1) * 100 for before, after in pairwise(closes))
    key = f"{company.symbol.lower()}_volatility"
    given = (
        f"closes = {closes}\nchanges = [(b / a - 1) * 100 for a, b in zip(closes, closes[1:])]\n"
        "mean = sum(changes) / len(changes)\nvariance = sum((c - mean) ** 2 for c in changes) / (len(changes) - 1)"
    )
    slots = named(company, **span(week), key=key, room=room.name)
    steps = (
        bars_step(company, week),
        python("variance**0.5", given=given),
        call("store_execution_result", context_key=key, free={"data": f"{value:.2f}"}),
        posting(room, f"Volatility of {company.symbol}: {value:.2f}%."),
    )
    answer = asked(value, at_most=8)
    says = f"The volatility of {company.symbol} was {value:.2f}%; it is stored and posted to #{room.name}."
    state = (posted(room, value, company.symbol), stored(key, value))
    return Draft((company.symbol, week[0].isoformat()), slots, steps, answer, says, state=state, in_any_order=True)


@family(HARD)
def correlation(material: Material) -> Draft:
    (first, second), room, week = material.several(2), material.room(), material.one(material.weeks)
    one, two = material.closes(first, week), material.closes(second, week)
    value = statistics.correlation(one, two)
    table = json.dumps({first.symbol: one, second.symbol: two})
    entities = (*sorted((first.symbol, second.symbol)), week[0].isoformat())
    slots = named(first, second, **span(week), room=room.name)
    steps = (
        bars_step(first, week),
        bars_step(second, week),
        call("analyze_financial_data", analysis_type="correlation", free={"data": table}),
        posting(room, f"Correlation of {first.symbol} and {second.symbol}: {value:.2f}."),
    )
    says = f"The correlation of {first.symbol} and {second.symbol} was {value:.2f}; I posted it to #{room.name}."
    state = (posted(room, value, first.symbol, second.symbol),)
    return Draft(entities, slots, steps, asked(value, at_most=8), says, state=state, in_any_order=True)


@family(HARD)
def value_to_sales(material: Material) -> Draft | None:
    company, room = material.company(), material.room()
    value, revenue = material.quote(company).market_cap, material.statements(company)[0].revenue
    if value is None:
        return None
    ratio = value / revenue
    steps = (
        call("fmp_get_quote", symbol=company.symbol),
        call("fmp_get_income_statement", symbol=company.symbol),
        python(f"{value} / {revenue}"),
        posting(room, f"{company.symbol} is valued at {ratio:.2f} times its sales."),
    )
    answer = asked(ratio)
    says = f"{company.symbol} is valued at {ratio:.2f} times its sales; I told #{room.name}."
    state = (posted(room, ratio, company.symbol),)
    return Draft((company.symbol,), named(company, room=room.name), steps, answer, says, state=state, in_any_order=True)


@family(HARD)
def mover_margin(material: Material) -> Draft | None:
    side, rank, room = material.one(SIDES), material.one(material.ranks), material.room()
    quote = material.mover(side, rank)
    if quote is None:
        return None
    symbol, statement = quote.symbol, material.statements(quote)[0]
    margin = statement.operating_income / statement.revenue * 100
    slots = {"place": f"number {rank}", "side": side, "room": room.name}
    steps = (
        movers_step(side, rank),
        call("fmp_get_income_statement", symbol=symbol),
        python(f"{statement.operating_income} / {statement.revenue} * 100"),
        posting(room, f"{symbol} has an operating margin of {margin:.2f}%."),
    )
    says = f"It is {symbol}, with an operating margin of {margin:.2f}%; I posted that to #{room.name}."
    return Draft((side, str(rank)), slots, steps, asked(margin), says, state=(posted(room, margin, symbol),))


@family(HARD)
def movers_spread(material: Material) -> Draft | None:
    rank, room = material.one(material.ranks), material.one(material.channels)
    up, down = (material.mover(side, rank) for side in SIDES)
    if up is None or down is None:
        return None
    spread = up.change_percent - down.change_percent
    slots = {"rank": str(rank), "room": room.name}
    steps = (
        movers_step("gainer", rank),
        movers_step("loser", rank),
        python(f"{up.change_percent} - ({down.change_percent})"),
        posting(room, f"{up.symbol} and {down.symbol} are {spread:.2f} points apart."),
    )
    says = f"{up.symbol} and {down.symbol} are {spread:.2f} percentage points apart; I told #{room.name}."
    state = (posted(room, spread, up.symbol, down.symbol),)
    return Draft((str(rank), room.name), slots, steps, asked(spread), says, state=state, in_any_order=True)
