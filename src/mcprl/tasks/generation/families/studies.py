"""Hard: statistics over weeks, ratios of a company, and what follows from the day's movers."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import correlation, stdev

from mcprl.goals import ExpectedState
from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, posted, posting, python
from mcprl.tasks.generation.families.movers import SIDES, mover_at, movers_step
from mcprl.tasks.generation.families.trading import bars_step, closes_of
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]


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


FAMILIES = (
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
