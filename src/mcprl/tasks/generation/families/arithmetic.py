"""Easy: a computation on figures that the question gives, for Python."""

from __future__ import annotations

from mcprl.records import Difficulty
from mcprl.tasks.generation.drafts import Draft, Family, asked, python
from mcprl.tasks.generation.material import Material

__all__ = ["FAMILIES"]


def _compound(material: Material) -> Draft:
    amount = material.draws.integer(12, 98) * 250
    rate = material.draws.integer(21, 89) / 10
    years = material.draws.integer(4, 19)
    value = amount * (1 + rate / 100) ** years
    return Draft(
        entities=(str(amount), str(rate), str(years)),
        slots={"amount": str(amount), "rate": str(rate), "years": str(years)},
        steps=(python(f"{amount} * (1 + {rate} / 100) ** {years}"),),
        answer=asked(value),
        says=f"It grows to ${value:.2f}.",
    )


FAMILIES = (
    Family(
        name="compound",
        difficulty=Difficulty.EASY,
        wordings=(
            "With Python, compute what ${amount} grows to in {years} years at {rate}% a year, compounded yearly. Two "
            "decimals.",
            "I put ${amount} aside at {rate}% yearly interest, compounded each year. How much is it after {years} "
            "years? Use Python, to the cent.",
            "Use Python: {amount} dollars, {years} years, {rate}% interest compounded annually. Final amount to two "
            "decimals?",
            "What is the value of ${amount} after {years} years if it earns {rate}% each year and the interest is "
            "reinvested? Run it in Python; two decimals.",
        ),
        held_out=(
            "A deposit of ${amount} earns {rate}% per year, added to the capital every year. Let Python find the "
            "balance after {years} years, to two decimals.",
        ),
        draw=_compound,
    ),
)
