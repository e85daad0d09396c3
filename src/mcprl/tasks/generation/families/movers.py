"""The day's gainers and losers: easy for one place in the list, medium with what follows from it."""

from __future__ import annotations

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, Step, asked, choice, python
from mcprl.tasks.generation.material import Material
from mcprl.world.facts import Quote

__all__ = ["FAMILIES", "SIDES", "mover_at", "movers_step"]

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


FAMILIES = (
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
