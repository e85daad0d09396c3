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


@family(EASY)
def bar_of_day(material: Material) -> Draft:
    company, (what, read) = material.company(), material.one(OF_BAR)
    bar = material.one(material.bars(company, material.one(material.weeks)))
    day = bar.start.date()
    entities = (company.symbol, day.isoformat(), what)
    steps = (bars_step(company, (day, day)),)
    says = f"On {day.isoformat()} the {what} of {company.symbol} was ${read(bar):.2f}."
    return Draft(entities, named(company, day=day.isoformat(), what=what), steps, asked(read(bar)), says)


@family(MEDIUM)
def week_average(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    average = sum(closes) / len(closes)
    steps = (bars_step(company, week), python(f"sum({closes}) / {len(closes)}"))
    answer = asked(average, at_most=8)
    says = f"The average close of {company.symbol} was ${average:.2f}."
    return Draft((company.symbol, week[0].isoformat()), named(company, **span(week)), steps, answer, says)


@family(MEDIUM)
def week_return(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    gain = (closes[-1] / closes[0] - 1) * 100
    steps = (bars_step(company, week), python(f"({closes[-1]} / {closes[0]} - 1) * 100"))
    answer = asked(gain, at_most=8)
    says = f"{company.symbol} moved {gain:+.2f}% from the first close to the last."
    return Draft((company.symbol, week[0].isoformat()), named(company, **span(week)), steps, answer, says)


@family(MEDIUM)
def week_volume(material: Material) -> Draft:
    company, week = material.company(), material.one(material.weeks)
    volumes = [bar.volume for bar in material.bars(company, week)]
    steps = (
        bars_step(company, week),
        call("process_mcp_data", free={"data": json.dumps(volumes), "processing_code": "sum(data)"}),
    )
    answer = asked(sum(volumes), 0, at_most=8)
    says = f"In all, {sum(volumes)} shares of {company.symbol} changed hands."
    return Draft((company.symbol, week[0].isoformat()), named(company, **span(week)), steps, answer, says)


@family(MEDIUM)
def largest_rise(material: Material) -> Draft | None:
    company, week = material.company(), material.one(material.weeks)
    closes = material.closes(company, week)
    rise = max(after - before for before, after in pairwise(closes))
    if rise <= 0:
        return None
    pipeline = ["[b - a for a, b in zip(data, data[1:])]", "max(data)"]
    free = {"pipeline_steps": pipeline, "input_data": json.dumps(closes)}
    steps = (bars_step(company, week), call("create_data_pipeline", free=free))
    says = f"The largest rise from one close to the next was ${rise:.2f}."
    entities = (company.symbol, week[0].isoformat())
    return Draft(entities, named(company, **span(week)), steps, asked(rise, at_most=8), says)


@family(EASY)
def mover(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = material.mover(side, rank)
    if quote is None:
        return None
    slots = {"side": side, "place": _PLACES[rank - 1]}
    says = f"The {_PLACES[rank - 1]} {side} is {quote.symbol} with {quote.change_percent:+.2f}%."
    return Draft((side, str(rank)), slots, (movers_step(side, rank),), asked(quote.change_percent), says)


@family(MEDIUM)
def mover_chief(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = material.mover(side, rank)
    company = quote and material.market.company(quote.symbol)
    if quote is None or company is None:
        return None
    steps = (movers_step(side, rank), call("fmp_get_company_profile", symbol=quote.symbol))
    answer = choice(company.ceo, (other.ceo for other in material.market.companies))
    says = f"The {_PLACES[rank - 1]} {side} is {quote.symbol}, which is led by {company.ceo}."
    return Draft((side, str(rank)), {"side": side, "place": _PLACES[rank - 1]}, steps, answer, says)


@family(MEDIUM)
def movers_average(material: Material) -> Draft | None:
    side, count = material.one(SIDES), material.one(material.ranks)
    changes = [quote.change_percent for quote in material.movers(side, count)]
    if not 2 <= count == len(changes):
        return None
    average = sum(changes) / count
    steps = (movers_step(side, count), python(f"sum({changes}) / {count}"))
    says = f"The top {count} {side}s moved {average:+.2f}% on average."
    return Draft((side, str(count)), {"side": side, "count": str(count)}, steps, asked(average), says)


@family(MEDIUM)
def price_gap(material: Material) -> Draft:
    first, second = material.several(2)
    price, other = material.quote(first).price, material.quote(second).price
    gap = (price - other) / other * 100
    steps = (
        call("fmp_get_quote", symbol=first.symbol),
        call("fmp_get_quote", symbol=second.symbol),
        python(f"({price} - {other}) / {other} * 100"),
    )
    says = f"A share of {first.symbol} costs {gap:+.2f}% compared with {second.symbol}."
    return Draft((first.symbol, second.symbol), named(first, second), steps, asked(gap), says, in_any_order=True)


@family(MEDIUM)
def larger_value(material: Material) -> Draft | None:
    first, second = material.several(2)
    values = [material.quote(company).market_cap for company in (first, second)]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return None
    winner, value = (first, values[0]) if values[0] > values[1] else (second, values[1])
    entities = tuple(sorted((first.symbol, second.symbol)))
    steps = (call("fmp_get_quote", symbol=first.symbol), call("fmp_get_quote", symbol=second.symbol))
    # Only one number may be given: an answer with both values does not say which one is larger.
    answer, says = asked(value, 0, at_most=1), f"{winner.name} is worth more: ${value}."
    return Draft(entities, named(first, second), steps, answer, says, in_any_order=True)


@family(MEDIUM)
def net_margin(material: Material) -> Draft:
    company = material.company()
    statement = material.statements(company)[0]
    margin = statement.net_income / statement.revenue * 100
    steps = (
        call("fmp_get_income_statement", symbol=company.symbol),
        python(f"{statement.net_income} / {statement.revenue} * 100"),
    )
    says = f"The net margin of {company.symbol} was {margin:.2f}%."
    return Draft((company.symbol,), named(company), steps, asked(margin), says)


@family(MEDIUM)
def price_target(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    target = round(close * material.draws.between(0.8, 1.3))
    move = (target - close) / close * 100
    steps = (call("fmp_get_previous_close", symbol=company.symbol), python(f"({target} - {close}) / {close} * 100"))
    says = f"From its previous close {company.symbol} would have to move {move:+.2f}%."
    return Draft((company.symbol, str(target)), named(company, target=str(target)), steps, asked(move), says)


@family(MEDIUM)
def name_to_price(material: Material) -> Draft | None:
    company = material.company()
    if [found.symbol for found in material.market.search(company.name, 10)][:1] != [company.symbol]:
        return None
    price = material.quote(company).price
    steps = (call("fmp_search_ticker", free={"query": company.name}), call("fmp_get_quote", symbol=company.symbol))
    says = f"{company.name} ({company.symbol}) trades at ${price:.2f}."
    return Draft((company.symbol,), {"name": company.name}, steps, asked(price), says)


@family(MEDIUM)
def price_if_open(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    is_open = material.market.status().session == "open"
    live, last = ("fmp_get_quote", quote.price), ("fmp_get_previous_close", quote.previous_close)
    (tool, value), (other, _) = (live, last) if is_open else (last, live)
    steps = (call("polygon_get_market_status"), call(tool, symbol=company.symbol))
    says = f"The market is {'open' if is_open else 'closed'}; {company.symbol} stands at ${value:.2f}."
    return Draft((company.symbol,), named(company), steps, asked(value, at_most=2), says, also=(other,))
