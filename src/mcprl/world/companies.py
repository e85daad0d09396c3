"""The companies of a world: who they are, and the size of their business that prices and statements grow from."""

from __future__ import annotations

from dataclasses import dataclass

from mcprl.world.draws import Draws
from mcprl.world.facts import Company
from mcprl.world.names import invent_people, invent_stems
from mcprl.world.sectors import SECTORS, Sector

__all__ = ["COUNTRIES", "NUM_COMPANIES", "Business", "make_businesses"]

NUM_COMPANIES = 60

COUNTRIES = {
    "US": "the United States",
    "CA": "Canada",
    "GB": "the United Kingdom",
    "DE": "Germany",
    "NL": "the Netherlands",
    "SE": "Sweden",
    "JP": "Japan",
    "SG": "Singapore",
    "BR": "Brazil",
    "IN": "India",
}

_CITIES = (
    *((city, "US") for city in ("Austin", "Boise", "Boston", "Chicago", "Columbus", "Dallas", "Denver", "Houston")),
    *((city, "US") for city in ("Madison", "Nashville", "Oakland", "Omaha", "Pittsburgh", "Portland", "Raleigh")),
    *((city, "US") for city in ("Sacramento", "Seattle", "Spokane", "Tampa", "Tucson")),
    *(("Toronto", "CA"), ("Calgary", "CA"), ("Leeds", "GB"), ("Hamburg", "DE"), ("Utrecht", "NL")),
    *(("Gothenburg", "SE"), ("Osaka", "JP"), ("Singapore", "SG"), ("Curitiba", "BR"), ("Pune", "IN")),
)
_ENDINGS = ("Inc.", "Inc.", "Corp.", "Corp.", "Group", "Holdings", "Co.")
# Dollars; a business is 0.6 to 1.8 times one of these.
_REVENUES = (400_000_000, 1_000_000_000, 1_000_000_000, 3_000_000_000, 3_000_000_000, 10_000_000_000, 30_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """A company and what its prices, statements and news are made from.

    Business(company=Company(symbol="VLDX", …), stem="Valdixen", short_name="Valdixen Systems", products=("cranes",),
    customers="factories", sector=…, revenue=3_100_000_000, operating_margin=0.14, growth=0.06, fiscal_month=3,
    first_price=8125, volatility=0.018, beta=1.1)

    `revenue` is that of the last fiscal year, which ended with `fiscal_month`; `first_price` is in cents.
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
        """As texts introduce it: "Valdixen Systems Inc. (VLDX)"."""
        return f"{self.company.name} ({self.company.symbol})"


def make_businesses(seed: int) -> tuple[Business, ...]:
    """The companies of the world of `seed`, by symbol."""
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
    # Between about twenty million and three billion shares; whole hundreds make price × shares whole dollars.
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
