"""The companies of a world: their profiles, and the business figures from which prices and statements follow."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Company


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# An onset with an r or l is followed by a coda without one: "Skand…" is pronounceable, "Krerl…" is not.
_PLAIN_ONSETS = _words("B C D F G H J K L M N P Qu R S T V W Z Sk St Sw Th")
_LIQUID_ONSETS = _words("Br Cr Dr Fr Gl Gr Kl Kr Pl Pr Sl Tr")
_LIQUID_CODAS = _words("l lk ld lm lv r rb rd rk rm rn rv")
_PLAIN_CODAS = _words("n nd nt nv st th v x z nk ct")
_NUCLEI = _words("a e i o u")
_TAILS = _words(
    "abex adane adris afane agant akor alith amere amond anar anex aquist aren ethan ivane ivik ixen ozar obel oden "
    "ofar olan omir onor orend oris ostra othen uvane"
)

_VOWELS = "AEIOUY"
# Well-known tickers, and abbreviations in prose or code. Only those without vowels, because our tickers have none.
_TAKEN = frozenset(
    _words(
        "MSFT JPM WMT CVX MRK CRM KHC NFLX PLTR TGT CVS MDT LRCX SNPS CDNS FTNT CRWD TXN BLK SCHW TMUS NKE DKNG RBLX "
        "SNDK WDC STX HPQ DLTR MCD CMG LMT RTX NSC CSX XLK XLF VXX FDX PLD SPG PSX MPC SLB KMB MNST STZ CTVA DHR TFC "
        "PNC MTB STT LNC TRV PGR HWM TDG LHX DHI PHM TTD FSLR NXT VST NRG DDOG PTC MRVL MPWR KKR FCX NTR DVN BKR HRL "
        "TSN SJM CPB GPN FTV CHTR WBD GLD SLV LQD TLT BND SCHD DXCM RMD BMRN VRTX SPX QQQ BRK TSM DFS LVS MGM DJT "
        "GRMN SWK TRP PBR DLR SQM VRSN VRSK WRB NDSN DRVN TRMB LRN STRL PRGS NVR NVS KRNT TRN SNX BRX CRBN PRM THRD "
        "SKX PXD PCT MNT STL PLT SLT SLD SKN DRCT "
        "TRST FRNK PLNT "
        "GDP SQL PDF HTTP HTML LLC LTD PHD GMT YTD TTM USD GBP CNY TLS SSH CSV XML CPU GPU RPC MCP TCP DNS VPN STR STD "
        "SRC PTR TXT MSG CTX SRV DRV PWR LST CNT NTH MTH MPH LBS FRM THX PLZ PLS BTW RST TST BLVD MRS HMM PSST TSK SHH "
        "BRR GRR PST FBI NBC CBS BBC DVD LCD PVC NHL NBA NFL FTX"
    )
)

_FIRST_NAMES = _words(
    "Adaeze Alina Amara Anders Beatriz Bogdan Camila Chidi Daria Dmitri Elena Emeka Farah Felix Gita Goran Hana Henrik "
    "Imani Ines Jonas Kaito Kamala Lars Leila Linh Mateo Mira Nadia Nils Oksana Olu Paloma Priya Rafael Renata Sanjay "
    "Selma Tariq Thandi Tomas Uma Viktor Wanjiru Yara Yusuf Zofia"
)
_LAST_NAMES = _words(
    "Abara Adeyemi Alvarado Andersen Banerjee Bergstrom Castellan Dlamini Dufresne Eriksen Farouk Fontaine Galanis "
    "Haddad Halvorsen Ibarra Ivanenko Jansson Kaminski Kimura Kowalczyk Lindqvist Mbeki Moreau Nakagawa Novotny Okafor "
    "Olsen Osei Pereira Quintero Rahimi Ramaswamy Sandoval Sorensen Takeda Tran Ueda Valdez Vasquez Wachira Whitlock "
    "Xiong Yilmaz Zeman Zielinski"
)


def invent_ticker(stem: str, length: int) -> str:
    """Return the first consonants of a name. Without vowels it is never an English word, so ordinary text does not
    contain it.

    >>> invent_ticker("Valdixen", 4)
    'VLDX'
    """
    return "".join(letter for letter in stem.upper() if letter not in _VOWELS)[:length]


def _invent_stem(draws: Draws) -> str:
    onset = draws.choice(_PLAIN_ONSETS + _LIQUID_ONSETS)
    codas = _PLAIN_CODAS if onset in _LIQUID_ONSETS else _PLAIN_CODAS + _LIQUID_CODAS
    return onset + draws.choice(_NUCLEI) + draws.choice(codas) + draws.choice(_TAILS)


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
    """An industry, with the second words of its companies' names, its products and its customers.

    Industry("Semiconductors", ("Semiconductor", "Devices"), ("power chips", "image sensors"), "car makers")
    """

    name: str
    surnames: tuple[str, ...]
    products: tuple[str, ...]
    customers: str


@dataclass(frozen=True, slots=True)
class Sector:
    """A sector. `revenue_per_employee` is in thousands of dollars; `volatility` is that of a daily return."""

    name: str
    revenue_per_employee: int
    volatility: float
    gross_margin: float
    industries: tuple[Industry, ...]


# Sector | revenue per employee | volatility | gross margin
#   Industry | second words of its companies' names | customers | products
_SECTORS = """
Technology | 520 | 0.019 | 0.58
  Semiconductors | Semiconductor, Microsystems | makers of cars and phones |
    power management chips, image sensors, radio chips, memory controllers
  Software | Software, Systems | mid-sized businesses |
    accounting software, warehouse software, a database for sensor data, design software
  Computer Hardware | Computing, Devices | data centres and hospitals |
    storage arrays, rugged tablets, network switches, liquid-cooled servers
Healthcare | 430 | 0.018 | 0.62
  Biotechnology | Therapeutics, Biosciences | hospitals and clinics |
    enzyme therapies, vaccines, gene assays, antibody treatments
  Medical Devices | Medical, Diagnostics | hospitals and laboratories |
    infusion pumps, heart monitors, blood analysers, surgical lights
Financial Services | 480 | 0.013 | 0.66
  Banks | Bancorp, Financial | households and small firms |
    mortgages, business loans, savings accounts, treasury services
  Insurance | Insurance, Mutual | households, farms and shippers |
    home insurance, cargo insurance, crop insurance, liability cover
Energy | 950 | 0.017 | 0.38
  Oil and Gas | Petroleum, Energy | refineries and utilities |
    natural gas, crude oil, marine fuel, lubricants
  Renewable Energy | Renewables, Power | utilities and cities |
    wind turbines, solar trackers, grid batteries, heat pumps
Industrials | 310 | 0.014 | 0.34
  Machinery | Machinery, Robotics | factories and ports |
    packaging robots, industrial pumps, cranes, milling machines
  Logistics | Logistics, Freight | retailers and manufacturers |
    container transport, cold storage, parcel delivery, rail freight
Consumer Cyclical | 260 | 0.016 | 0.42
  Retail | Stores, Outfitters | families and sports clubs |
    outdoor clothing, furniture, kitchenware, running shoes
  Auto Parts | Automotive, Mobility | car makers and fleets |
    brake systems, electric drivetrains, car seats, charging stations
Basic Materials | 540 | 0.015 | 0.31
  Chemicals | Chemicals, Materials | farmers and builders |
    coatings, fertiliser, adhesives, recycled plastics
  Metals | Metals, Mining | makers of batteries and cables |
    copper, lithium carbonate, aluminium sheet, rare earth oxides
Communication Services | 410 | 0.016 | 0.55
  Telecom | Telecom, Networks | households and public offices |
    fibre connections, mobile plans, satellite links, business telephony
  Media | Media, Interactive | readers, listeners and players |
    puzzle games, a streaming service, podcasts, regional newspapers
"""


def _read_sectors(table: str) -> tuple[Sector, ...]:
    sectors: list[Sector] = []
    for block in re.split(r"\n(?! )", table.strip().replace("|\n", "|")):
        sector, *rows = ([cell.strip() for cell in row.split("|")] for row in block.split("\n"))
        name, revenue, volatility, margin = sector
        industries = tuple(
            Industry(industry, tuple(surnames.split(", ")), tuple(products.split(", ")), customers)
            for industry, surnames, customers, products in rows
        )
        sectors.append(Sector(name, int(revenue), float(volatility), float(margin), industries))
    return tuple(sectors)


SECTORS = _read_sectors(_SECTORS)

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
# In dollars. The revenue of a business is 0.6 to 1.8 times one of these.
_REVENUES = (400_000_000, 1_000_000_000, 1_000_000_000, 3_000_000_000, 3_000_000_000, 10_000_000_000, 30_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """A company and the inputs for its prices, statements and news.

    Business(company=Company(symbol="VLDX", …), stem="Valdixen", short_name="Valdixen Systems", products=("cranes",),
    customers="factories", sector=…, revenue=3_100_000_000, operating_margin=0.14, growth=0.06, fiscal_month=3,
    first_price=8125, volatility=0.018, beta=1.1)

    `revenue` is that of the last fiscal year, which ended in `fiscal_month`; `first_price` is in cents.
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
