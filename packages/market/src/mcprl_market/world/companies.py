"""The companies of a world: their profiles, and the business figures from which prices and statements follow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Company

WORDS: Mapping[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
"""The names, places, products and texts that a world is made of."""


# An onset with an r or l is followed by a coda without one: "Skand…" is pronounceable, "Krerl…" is not.
_SYLLABLES: Mapping[str, Sequence[str]] = {part: words.split() for part, words in WORDS["syllables"].items()}

_VOWELS = "AEIOUY"
# Well-known tickers, and abbreviations in prose or code. Only those without vowels, because our tickers have none.
_TAKEN = frozenset(WORDS["taken_tickers"])

_FIRST_NAMES: Sequence[str] = WORDS["first_names"]
_LAST_NAMES: Sequence[str] = WORDS["last_names"]


def invent_ticker(stem: str, length: int) -> str:
    """Return the first consonants of a name. Without vowels it is never an English word, so ordinary text does not
    contain it.

    >>> invent_ticker("Valdixen", 4)
    'VLDX'
    """
    return "".join(letter for letter in stem.upper() if letter not in _VOWELS)[:length]


def _invent_stem(draws: Draws) -> str:
    onset = draws.choice([*_SYLLABLES["plain_onsets"], *_SYLLABLES["liquid_onsets"]])
    liquid_codas = () if onset in _SYLLABLES["liquid_onsets"] else _SYLLABLES["liquid_codas"]
    start = onset + draws.choice(_SYLLABLES["nuclei"])
    return start + draws.choice([*_SYLLABLES["plain_codas"], *liquid_codas]) + draws.choice(_SYLLABLES["tails"])


def invent_stems(draws: Draws, count: int) -> list[tuple[str, str]]:
    """Return `count` names with their tickers, such as ("Valdixen", "VLDX"). No two tickers start with the same three
    letters, so none is a prefix of another, and a typo rarely turns one into another.
    """
    found: dict[str, tuple[str, str]] = {}
    while len(found) < count:
        stem = _invent_stem(draws)
        ticker = invent_ticker(stem, 3 if draws.chance(0.3) else 4)
        doubled = any(letter * 2 in ticker for letter in ticker)
        if len(ticker) >= 3 and not doubled and ticker not in _TAKEN and ticker[:3] not in found:
            found[ticker[:3]] = (stem, ticker)
    return list(found.values())


def invent_people(draws: Draws, count: int) -> list[str]:
    """Return `count` different full names."""
    firsts, lasts = draws.shuffled(_FIRST_NAMES), draws.shuffled(_LAST_NAMES)
    # The lists have 47 and 46 names, so cycling through both does not repeat a pair for a long time.
    return [f"{firsts[i % len(firsts)]} {lasts[i % len(lasts)]}" for i in range(count)]


@dataclass(frozen=True, slots=True)
class Industry:
    """An industry: its products, its customers, and words that may end its companies' names.

    Industry("Semiconductors", ("Semiconductor", "Devices"), ("power chips", "image sensors"), "car makers")
    """

    name: str
    surnames: tuple[str, ...]
    products: tuple[str, ...]
    customers: str


@dataclass(frozen=True, slots=True)
class Sector:
    """A sector. `revenue_per_employee` is in thousands of dollars; `volatility` is per day."""

    name: str
    revenue_per_employee: int
    volatility: float
    gross_margin: float
    industries: tuple[Industry, ...]


def _make_industry(name: str, surnames: Sequence[str], products: Sequence[str], customers: str) -> Industry:
    return Industry(name, tuple(surnames), tuple(products), customers)


SECTORS = tuple(
    Sector(**(sector | {"industries": tuple(_make_industry(**each) for each in sector["industries"])}))
    for sector in WORDS["sectors"]
)

NUM_COMPANIES = 60

COUNTRIES: Mapping[str, str] = WORDS["countries"]

_CITIES: Sequence[tuple[str, str]] = WORDS["cities"]
_ENDINGS = ("Inc.", "Inc.", "Corp.", "Corp.", "Group", "Holdings", "Co.")
# In dollars. The revenue of a business is 0.6 to 1.8 times one of these.
_REVENUES = (400_000_000, 1_000_000_000, 1_000_000_000, 3_000_000_000, 3_000_000_000, 10_000_000_000, 30_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """A company and the inputs for its prices, statements and news.

    Business(company=Company(symbol="VLDX", …), stem="Valdixen", short_name="Valdixen Systems", products=("cranes",),
    customers="factories", sector=…, revenue=3_100_000_000, operating_margin=0.14, growth=0.06, fiscal_month=3,
    first_price=8125, volatility=0.018, beta=1.1)

    `revenue` is for the last fiscal year, which ended in `fiscal_month`; `first_price` is in cents.
    """

    company: Company
    stem: str
    short_name: str
    products: tuple[str, ...]
    customers: str
    sector: Sector
    revenue: int
    operating_margin: float
    growth: float
    fiscal_month: int
    first_price: int
    volatility: float
    beta: float

    @property
    def named(self) -> str:
        """The name and ticker: "Valdixen Systems Inc. (VLDX)"."""
        return f"{self.company.name} ({self.company.symbol})"


def make_businesses(seed: int) -> tuple[Business, ...]:
    """Return the companies of the world of `seed`, sorted by symbol."""
    draws = Draws(seed, "companies")
    stems = invent_stems(draws, NUM_COMPANIES)
    people = invent_people(draws, NUM_COMPANIES)
    sectors = draws.shuffled([SECTORS[i % len(SECTORS)] for i in range(NUM_COMPANIES)])
    made = [
        _make_business(Draws(seed, "company", symbol), stem, symbol, sector, ceo)
        for (stem, symbol), sector, ceo in zip(stems, sectors, people, strict=True)
    ]
    return tuple(sorted(made, key=lambda business: business.company.symbol))


def _make_business(draws: Draws, stem: str, symbol: str, sector: Sector, ceo: str) -> Business:
    industry = draws.choice(sector.industries)
    short_name = f"{stem} {draws.choice(industry.surnames)}"
    products = tuple(draws.some(industry.products, 2))
    revenue = int(draws.choice(_REVENUES) * draws.between(0.6, 1.8))
    profitable = draws.chance(0.85)
    operating_margin = draws.between(0.08, 0.55 * sector.gross_margin) if profitable else draws.between(-0.25, -0.04)
    value = revenue * (operating_margin * 0.79 * draws.between(12, 34) if profitable else draws.between(1.2, 4.0))
    # Between about twenty million and three billion shares. With whole hundreds, price × shares is in whole dollars.
    lowest, highest = max(900, value * 100 / 3_000_000_000), min(38_000, value * 100 / 20_000_000)
    first_price = int(draws.between(lowest, max(lowest + 600, highest)))
    shares = round(value * 100 / first_price / 10_000) * 10_000
    city, country = draws.choice(_CITIES)
    founded = draws.integer(1921, 2014)
    company = Company(
        symbol=symbol,
        name=f"{short_name} {draws.choice(_ENDINGS)}",
        exchange=draws.choice(("NASDAQ", "NYSE")),
        sector=sector.name,
        industry=industry.name,
        ceo=ceo,
        country=country,
        city=city,
        employees=max(40, round(revenue / (sector.revenue_per_employee * 1000 * draws.between(0.7, 1.4)) / 10) * 10),
        founded=founded,
        website=f"https://www.{stem.lower()}.example",
        description=(
            f"{short_name} sells {products[0]} and {products[1]} to {industry.customers}. Founded in {founded}, it has "
            f"its headquarters in {city}, {COUNTRIES[country]}."
        ),
        shares=shares,
    )
    return Business(
        company=company,
        stem=stem,
        short_name=short_name,
        products=products,
        customers=industry.customers,
        sector=sector,
        revenue=revenue,
        operating_margin=operating_margin,
        growth=draws.between(-0.02, 0.16),
        fiscal_month=draws.choice((3, 3, 4)),
        first_price=first_price,
        volatility=sector.volatility * draws.between(0.7, 1.4),
        beta=draws.between(0.6, 1.4),
    )
