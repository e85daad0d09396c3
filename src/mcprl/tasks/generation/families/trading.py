"""Bars of one stock over days and weeks: easy where one bar is asked for, medium where Python sums them up."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from itertools import pairwise

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, python
from mcprl.tasks.generation.material import Material
from mcprl.world.facts import Bar, Company

__all__ = ["FAMILIES", "bars_step", "closes_of"]

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


FAMILIES = (
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
