"""Hard: statistics over weeks, ratios of a company, and what follows from the day's movers."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import correlation, stdev

from mcprl.goals import ExpectedState
from mcprl.records import Difficulty
from mcprl_market.generation.drafts import Draft, Family, Material, Step, asked, choice, posted, posting, python
from mcprl_market.generation.families.trading import bars_step, closes_of
from mcprl_market.world.facts import Quote

__all__ = ["STUDIES"]


def _price_gap(material: Material) -> Draft:
    first, second = material.several(2)
    price, other = material.quote(first).price, material.quote(second).price
    gap = (price - other) / other * 100
    return Draft(
        entities=(first.symbol, second.symbol),
        slots={"symbol": first.symbol, "other": second.symbol, "name": first.name, "other_name": second.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": first.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": second.symbol}),
            python(f"({price} - {other}) / {other} * 100"),
        ),
        answer=asked(gap),
        says=f"A share of {first.symbol} costs {gap:+.2f}% compared with {second.symbol}.",
        in_any_order=True,
    )


def _larger_value(material: Material) -> Draft | None:
    first, second = material.several(2)
    values = [material.quote(company).market_cap for company in (first, second)]
    if values[0] is None or values[1] is None or values[0] == values[1]:
        return None
    winner, value = (first, values[0]) if values[0] > values[1] else (second, values[1])
    return Draft(
        entities=tuple(sorted((first.symbol, second.symbol))),
        slots={"symbol": first.symbol, "other": second.symbol, "name": first.name, "other_name": second.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": first.symbol}),
            Step(tool="fmp_get_quote", matters={"symbol": second.symbol}),
        ),
        # One number only: who gives both values has not said which is the larger one.
        answer=asked(value, 0, at_most=1),
        says=f"{winner.name} is worth more: ${value}.",
        in_any_order=True,
    )


def _net_margin(material: Material) -> Draft:
    company = material.company()
    statement = material.statements(company)[0]
    margin = statement.net_income / statement.revenue * 100
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name},
        steps=(
            Step(tool="fmp_get_income_statement", matters={"symbol": company.symbol}),
            python(f"{statement.net_income} / {statement.revenue} * 100"),
        ),
        answer=asked(margin),
        says=f"The net margin of {company.symbol} was {margin:.2f}%.",
    )


def _price_target(material: Material) -> Draft:
    company = material.company()
    close = material.quote(company).previous_close
    target = round(close * material.draws.between(0.8, 1.3))
    move = (target - close) / close * 100
    return Draft(
        entities=(company.symbol, str(target)),
        slots={"symbol": company.symbol, "name": company.name, "target": str(target)},
        steps=(
            Step(tool="fmp_get_previous_close", matters={"symbol": company.symbol}),
            python(f"({target} - {close}) / {close} * 100"),
        ),
        answer=asked(move),
        says=f"From its previous close {company.symbol} would have to move {move:+.2f}%.",
    )


def _name_to_price(material: Material) -> Draft | None:
    company = material.company()
    if [found.symbol for found in material.market.search(company.name, 10)][:1] != [company.symbol]:
        return None
    price = material.quote(company).price
    return Draft(
        entities=(company.symbol,),
        slots={"name": company.name},
        steps=(
            Step(tool="fmp_search_ticker", free={"query": company.name}),
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
        ),
        answer=asked(price),
        says=f"{company.name} ({company.symbol}) trades at ${price:.2f}.",
    )


def _price_if_open(material: Material) -> Draft:
    company = material.company()
    quote = material.quote(company)
    is_open = material.market.status().session == "open"
    live, last = ("fmp_get_quote", quote.price), ("fmp_get_previous_close", quote.previous_close)
    (tool, value), (other, _) = (live, last) if is_open else (last, live)
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name},
        steps=(Step(tool="polygon_get_market_status"), Step(tool=tool, matters={"symbol": company.symbol})),
        answer=asked(value, at_most=2),
        says=f"The market is {'open' if is_open else 'closed'}; {company.symbol} stands at ${value:.2f}.",
        also=(other,),
    )


COMPARING = (
    Family(
        name="price-gap",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "By how many percent is the price of {symbol} above (+) or below (-) that of {other}? Compute it with "
            "Python, signed, to two decimals.",
            "Compare the current prices of {name} ({symbol}) and {other_name} ({other}) with Python: how far is the "
            "first from the second, in percent of the second, signed, two decimals?",
            "Get both quotes, then use Python: (price of {symbol} - price of {other}) / price of {other}, in percent "
            "with two decimals.",
            "How much more expensive is a share of {symbol} than one of {other}, in percent? Use Python; a minus sign "
            "if it is cheaper; two decimals.",
        ),
        held_out=(
            "Take the price of {other} as 100%. Using Python, how far above or below it is {symbol} now? Signed, in "
            "percent, two decimals.",
        ),
        draw=_price_gap,
    ),
    Family(
        name="larger-value",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Which is worth more by market cap, {symbol} or {other}? Name it with its market cap in whole dollars, and "
            "give no other figure.",
            "Compare the market capitalisations of {name} ({symbol}) and {other_name} ({other}). State the larger one "
            "in whole dollars, and no other number.",
            "{symbol} against {other}: whose market cap is bigger? Answer with the bigger figure alone, in dollars.",
            "Look at the quotes of {symbol} and {other} and report only the higher of the two market caps, in whole "
            "dollars.",
        ),
        held_out=(
            "I want to know which of {other} and {symbol} the market values higher. Give just that company and its "
            "market cap in whole dollars.",
        ),
        draw=_larger_value,
    ),
    Family(
        name="net-margin",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "What was the net margin of {symbol} in its last fiscal year? Use Python; percent, two decimals.",
            "Work out with Python how many percent of its revenue {name} ({symbol}) kept as net income in the last "
            "fiscal year, to two decimals.",
            "Get the annual income statement of {symbol} and divide net income by revenue in Python. Percent, two "
            "decimals.",
            "Net income as a percentage of revenue for {symbol}, latest annual statement: compute it in Python and "
            "round to two decimals.",
        ),
        held_out=(
            "Of every 100 dollars that {name} ({symbol}) took in last fiscal year, how many were profit after "
            "everything? Compute in Python, two decimals.",
        ),
        draw=_net_margin,
    ),
    Family(
        name="price-target",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Starting from its previous close, by how many percent must {symbol} move to reach ${target}? Use Python; "
            "signed, two decimals.",
            "Fetch the previous close of {name} ({symbol}) and compute in Python the percentage change if the price "
            "goes to ${target}. Signed, two decimals.",
            "My target for {symbol} is ${target}. How far is that from the previous close in percent? Compute it with "
            "Python, with the sign and two decimals.",
            "With Python: the move in percent from {symbol}'s previous close to ${target}, signed, to two decimals.",
        ),
        held_out=(
            "Suppose {symbol} traded at ${target}. Relative to where it last closed, what change is that? Python, "
            "percent with sign, two decimals.",
        ),
        draw=_price_target,
    ),
    Family(
        name="name-to-price",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Find the ticker of {name}, then tell me what it trades at, to two decimals.",
            "I don't know the symbol of {name}. Look it up and give me the current price to the cent.",
            "Search for {name} and quote its current share price with two decimals.",
            "What does one share of {name} cost now? You will have to find its ticker first. Two decimals.",
        ),
        held_out=("Price check on {name}: look up its symbol, then report the current price in dollars and cents.",),
        draw=_name_to_price,
    ),
    Family(
        name="price-if-open",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Check whether the market is open. If it is, give the current price of {symbol}; if not, its previous "
            "close. Two decimals.",
            "Is the stock market trading? If so I want the live price of {name} ({symbol}), otherwise its last close, "
            "to the cent.",
            "Look at the market status first. Market open: report {symbol}'s current price. Market closed: report its "
            "previous close. Two decimals.",
            "Depending on whether the market is open right now, tell me {symbol}'s current price (open) or previous "
            "close (closed), to two decimals.",
        ),
        held_out=(
            "First see if trading is on. During trading hours I need {symbol}'s price now, outside of them the "
            "previous close, in dollars and cents.",
        ),
        draw=_price_if_open,
    ),
)


SIDES = ("gainer", "loser")
_ORDINALS = ("second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_PLACES = ("biggest", *(f"{ordinal} biggest" for ordinal in _ORDINALS))


def _movers(material: Material, side: str, count: int) -> tuple[Quote, ...]:
    return material.market.gainers(count) if side == "gainer" else material.market.losers(count)


def mover_at(material: Material, side: str, rank: int) -> Quote | None:
    """The stock at a place of the list, from 1; None where the list is shorter."""
    movers = _movers(material, side, rank)
    return movers[-1] if len(movers) == rank else None


def movers_step(side: str, count: int) -> Step:
    """The list. How long it is, is free: a longer one tells the same."""
    return Step(tool=f"fmp_get_market_{side}s", free={"limit": count})


def _mover(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = mover_at(material, side, rank)
    if quote is None:
        return None
    return Draft(
        entities=(side, str(rank)),
        slots={"side": side, "place": _PLACES[rank - 1]},
        steps=(movers_step(side, rank),),
        answer=asked(quote.change_percent),
        says=f"The {_PLACES[rank - 1]} {side} is {quote.symbol} with {quote.change_percent:+.2f}%.",
    )


def _mover_chief(material: Material) -> Draft | None:
    side, rank = material.one(SIDES), material.one(material.ranks)
    quote = mover_at(material, side, rank)
    company = material.market.company(quote.symbol) if quote is not None else None
    if quote is None or company is None:
        return None
    return Draft(
        entities=(side, str(rank)),
        slots={"side": side, "place": _PLACES[rank - 1]},
        steps=(movers_step(side, rank), Step(tool="fmp_get_company_profile", matters={"symbol": quote.symbol})),
        answer=choice(company.ceo, (other.ceo for other in material.market.companies)),
        says=f"The {_PLACES[rank - 1]} {side} is {quote.symbol}, which is led by {company.ceo}.",
    )


def _movers_average(material: Material) -> Draft | None:
    side, count = material.one(SIDES), material.one(material.ranks)
    changes = [quote.change_percent for quote in _movers(material, side, count)]
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


MOVERS = (
    Family(
        name="mover",
        difficulty=Difficulty.EASY,
        wordings=(
            "Which stock is today's {place} {side}, and by how many percent has it moved? Signed, two decimals.",
            "Name the {place} {side} of the day with its percent change (sign and two decimals).",
            "Look at the list of {side}s: who is the {place} one, and what is its change in percent, to two decimals?",
            "What is the percentage change of the {place} {side} today? Give ticker and signed figure, two decimals.",
        ),
        held_out=("Tell me about today's {place} {side}: its ticker and its move in percent, signed, two decimals.",),
        draw=_mover,
    ),
    Family(
        name="mover-chief",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Who is the CEO of today's {place} {side}?",
            "Find the {place} {side} of the day, then tell me who runs that company.",
            "Take the {place} name on today's list of {side}s and look up its chief executive.",
            "Which person leads the company that is the {place} {side} today? Full name, please.",
        ),
        held_out=("I want the name of the chief executive behind today's {place} {side}.",),
        draw=_mover_chief,
    ),
    Family(
        name="movers-average",
        difficulty=Difficulty.MEDIUM,
        wordings=(
            "Find today's top {count} {side}s and compute their average percent change with Python. Signed, two "
            "decimals.",
            "What is the mean move of the {count} biggest {side}s today? Use Python; percent, signed, two decimals.",
            "Get the {count} leading {side}s and average their changes in Python, signed, to two decimals.",
            "Across the {count} biggest {side}s of the day, what is the average percentage change? Python, sign and "
            "two decimals.",
        ),
        held_out=(
            "If I had held today's {count} biggest {side}s in equal parts, what would the average change be? Python; "
            "signed percent, two decimals.",
        ),
        draw=_movers_average,
    ),
)


def _volatility(material: Material) -> Draft:
    company, room, week = material.company(), material.room(), material.one(material.weeks)
    closes = closes_of(material, company, week)
    value = stdev((after / before - 1) * 100 for before, after in pairwise(closes))
    key = f"{company.symbol.lower()}_volatility"
    given = (
        f"closes = {closes}\nchanges = [(b / a - 1) * 100 for a, b in zip(closes, closes[1:])]\n"
        "mean = sum(changes) / len(changes)\nvariance = sum((c - mean) ** 2 for c in changes) / (len(changes) - 1)"
    )
    return Draft(
        entities=(company.symbol, week[0].isoformat()),
        slots={
            "symbol": company.symbol,
            "name": company.name,
            "start": week[0].isoformat(),
            "end": week[1].isoformat(),
            "key": key,
            "room": room.name,
        },
        steps=(
            bars_step(company, week),
            python("variance**0.5", given=given),
            Step(tool="store_execution_result", matters={"context_key": key}, free={"data": f"{value:.2f}"}),
            posting(room, f"Volatility of {company.symbol}: {value:.2f}%."),
        ),
        answer=asked(value, at_most=8),
        says=f"The volatility of {company.symbol} was {value:.2f}%; it is stored and posted to #{room.name}.",
        state=(
            posted(room, value, 2, company.symbol),
            ExpectedState(
                tool="get_execution_context", arguments={"context_key": key}, texts=(asked(value, at_most=None),)
            ),
        ),
        in_any_order=True,
    )


def _correlation(material: Material) -> Draft:
    (first, second), room, week = material.several(2), material.room(), material.one(material.weeks)
    one, two = closes_of(material, first, week), closes_of(material, second, week)
    value = correlation(one, two)
    table = json.dumps({first.symbol: one, second.symbol: two})
    analysis = {"analysis_type": "correlation"}
    return Draft(
        entities=(*sorted((first.symbol, second.symbol)), week[0].isoformat()),
        slots={
            "symbol": first.symbol,
            "other": second.symbol,
            "start": week[0].isoformat(),
            "end": week[1].isoformat(),
            "room": room.name,
        },
        steps=(
            bars_step(first, week),
            bars_step(second, week),
            Step(tool="analyze_financial_data", matters=analysis, free={"data": table}),
            posting(room, f"Correlation of {first.symbol} and {second.symbol}: {value:.2f}."),
        ),
        answer=asked(value, at_most=8),
        says=f"The correlation of {first.symbol} and {second.symbol} was {value:.2f}; I posted it to #{room.name}.",
        state=(posted(room, value, 2, first.symbol, second.symbol),),
        in_any_order=True,
    )


def _value_to_sales(material: Material) -> Draft | None:
    company, room = material.company(), material.room()
    value, revenue = material.quote(company).market_cap, material.statements(company)[0].revenue
    if value is None:
        return None
    ratio = value / revenue
    return Draft(
        entities=(company.symbol,),
        slots={"symbol": company.symbol, "name": company.name, "room": room.name},
        steps=(
            Step(tool="fmp_get_quote", matters={"symbol": company.symbol}),
            Step(tool="fmp_get_income_statement", matters={"symbol": company.symbol}),
            python(f"{value} / {revenue}"),
            posting(room, f"{company.symbol} is valued at {ratio:.2f} times its sales."),
        ),
        answer=asked(ratio),
        says=f"{company.symbol} is valued at {ratio:.2f} times its sales; I told #{room.name}.",
        state=(posted(room, ratio, 2, company.symbol),),
        in_any_order=True,
    )


def _mover_margin(material: Material) -> Draft | None:
    side, rank, room = material.one(SIDES), material.one(material.ranks), material.room()
    quote = mover_at(material, side, rank)
    statements = material.market.statements(quote.symbol) if quote is not None else None
    if quote is None or not statements:
        return None
    symbol, statement = quote.symbol, statements[0]
    margin = statement.operating_income / statement.revenue * 100
    return Draft(
        entities=(side, str(rank)),
        slots={"place": f"number {rank}", "side": side, "room": room.name},
        steps=(
            movers_step(side, rank),
            Step(tool="fmp_get_income_statement", matters={"symbol": symbol}),
            python(f"{statement.operating_income} / {statement.revenue} * 100"),
            posting(room, f"{symbol} has an operating margin of {margin:.2f}%."),
        ),
        answer=asked(margin),
        says=f"It is {symbol}, with an operating margin of {margin:.2f}%; I posted that to #{room.name}.",
        state=(posted(room, margin, 2, symbol),),
    )


def _movers_spread(material: Material) -> Draft | None:
    rank, room = material.one(material.ranks), material.one(material.channels)
    up, down = (mover_at(material, side, rank) for side in SIDES)
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
        state=(posted(room, spread, 2, up.symbol, down.symbol),),
        in_any_order=True,
    )


STUDIES = (
    Family(
        name="volatility",
        difficulty=Difficulty.HARD,
        wordings=(
            "Compute in Python the sample standard deviation of the daily percent changes between the closes of "
            "{symbol} from {start} to {end}. Store it under {key}, post it with the ticker to #{room}, and tell me. "
            "Two decimals.",
            "How volatile was {name} ({symbol}) from {start} to {end}? Take the daily closes, use Python for the "
            "sample standard deviation of their day-to-day changes in percent, keep it as {key}, send ticker and "
            "figure to #{room}, and report it. Two decimals.",
            "Get {symbol}'s daily bars of {start} to {end}; with Python find the sample standard deviation of the "
            "percent changes from close to close (two decimals); save it as {key}; tell #{room} (with the ticker); "
            "answer with it.",
            "I need the volatility of {symbol}, {start} through {end}: sample standard deviation of close-to-close "
            "percent changes, Python, two decimals. Save under {key}, post to #{room} with the ticker, and give me the "
            "figure.",
        ),
        held_out=(
            "Measure how much {symbol} swung between {start} and {end}: in Python, the sample standard deviation of "
            "day-to-day percent changes of the close, two decimals. It goes into {key}, to #{room} (with the ticker), "
            "and to me.",
        ),
        draw=_volatility,
    ),
    Family(
        name="correlation",
        difficulty=Difficulty.HARD,
        wordings=(
            "What is the correlation of the daily closes of {symbol} and {other} from {start} to {end}? Let "
            "analyze_financial_data find it, two decimals; post it with both tickers to #{room} and tell me.",
            "Get the daily bars of {symbol} and {other} between {start} and {end}, run a correlation analysis on the "
            "closing prices with analyze_financial_data (two decimals), send it to #{room} with both tickers, and "
            "report it.",
            "Do {symbol} and {other} move together? Correlate their closes of {start} to {end} with "
            "analyze_financial_data, two decimals. Tell #{room}, naming both tickers, and answer with the figure.",
            "Correlation of the closing prices of {symbol} and {other}, {start} through {end}, by "
            "analyze_financial_data, to two decimals: post it and both tickers in #{room}, and repeat it to me.",
        ),
        held_out=(
            "How closely did the closes of {other} follow those of {symbol} from {start} to {end}? Give the "
            "correlation coefficient that analyze_financial_data finds, two decimals, to #{room} with both tickers "
            "and to me.",
        ),
        draw=_correlation,
    ),
    Family(
        name="value-to-sales",
        difficulty=Difficulty.HARD,
        wordings=(
            "Compute the price-to-sales ratio of {symbol} in Python: market cap over revenue of the last fiscal year, "
            "two decimals. Post it with the ticker to #{room} and tell me.",
            "How many times its last annual revenue is {name} ({symbol}) worth by market cap? Python, two decimals; "
            "send ticker and ratio to #{room}, and report the ratio.",
            "Divide the market cap of {symbol} by its latest annual revenue with Python (two decimals), let #{room} "
            "know the ratio and the ticker, and answer with the ratio.",
            "For #{room}: the market cap of {symbol} as a multiple of its revenue in the last fiscal year, computed in "
            "Python to two decimals. Post it with the ticker and repeat it to me.",
        ),
        held_out=(
            "Is {symbol} expensive? Take its market cap and its last annual revenue, divide them in Python (two "
            "decimals), share ticker and ratio in #{room}, and tell me the ratio.",
        ),
        draw=_value_to_sales,
    ),
    Family(
        name="mover-margin",
        difficulty=Difficulty.HARD,
        wordings=(
            "Take {place} on today's list of {side}s and compute its operating margin of the last fiscal year in "
            "Python (percent, two decimals). Post ticker and margin to #{room} and tell me the margin.",
            "Who is {place} among today's {side}s? Use its annual income statement and Python to get operating income "
            "in percent of revenue, two decimals; send it with the ticker to #{room} and report it.",
            "Find {place} of the {side}s today, get its annual income statement, compute the operating margin with "
            "Python (two decimals, percent), tell #{room} ticker and margin, and answer with the margin.",
            "For today's {side} {place}: operating income as a percentage of revenue in the last fiscal year, by "
            "Python, two decimals. Post it in #{room} with the ticker; repeat it to me.",
        ),
        held_out=(
            "The {side} that is {place} today: does it earn money? Work out its last annual operating margin in "
            "Python (percent, two decimals), share it with the ticker in #{room}, and give me the number.",
        ),
        draw=_mover_margin,
    ),
    Family(
        name="movers-spread",
        difficulty=Difficulty.HARD,
        wordings=(
            "How many percentage points lie between number {rank} of today's gainers and number {rank} of the losers? "
            "Compute with Python, two decimals; post it with both tickers to #{room} and tell me.",
            "Take place {rank} of the gainers and place {rank} of the losers, subtract the second percent change from "
            "the first in Python (two decimals), send the spread and both tickers to #{room}, and report it.",
            "Use Python to find the gap in percentage points between the changes of the gainer in place {rank} and the "
            "loser in place {rank}, two decimals. Tell #{room} with both tickers and answer with the gap.",
            "Post to #{room} how far apart number {rank} of the gainers and number {rank} of the losers are today, in "
            "percentage points (Python, two decimals), with both tickers; repeat the figure to me.",
        ),
        held_out=(
            "Gainer number {rank} minus loser number {rank}: what is the difference of their percent changes today? "
            "Python, two decimals. Let #{room} know it with both tickers, and me.",
        ),
        draw=_movers_spread,
    ),
)
