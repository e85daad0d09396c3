"""The facts that tools state about markets and a team's chat: one kind of record per fact.

The live servers read them from an upstream's JSON, the offline servers from a seeded market. So both format a tool's
text and structured answer with the same code. Money is in dollars, times are in New York.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum


class Frequency(StrEnum):
    """How long a bar is."""

    DAILY = "daily"
    HOURLY = "hourly"
    MINUTE = "minute"


class Period(StrEnum):
    """How long a statement's period is."""

    ANNUAL = "annual"
    QUARTERLY = "quarterly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Company(symbol="VLKN", name="Valkenor Systems Inc.", exchange="NASDAQ", sector="Technology",
    industry="Semiconductors", ceo="Mira Osei", country="US", city="Austin", employees=12400, founded=1998,
    website="https://…", description="Valkenor Systems designs …", shares=512_000_000)
    """

    symbol: str
    name: str
    exchange: str = ""
    sector: str = ""
    industry: str = ""
    ceo: str = ""
    country: str = ""
    city: str = ""
    employees: int | None = None
    founded: int | None = None
    website: str = ""
    description: str = ""
    shares: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The state of a stock now. `change` is against the previous close, `change_percent` in per cent (1.5 is 1.5%)."""

    symbol: str
    name: str
    price: float
    previous_close: float
    change: float
    change_percent: float
    open: float | None = None
    day_low: float | None = None
    day_high: float | None = None
    volume: int | None = None
    market_cap: int | None = None
    pe: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Prices over a day, an hour or a minute that begins at `start`."""

    symbol: str
    start: datetime
    open: float
    high: float
    low: float
    close: float
    volume: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """An income statement of the period that ends on `end`; `label` is such as "FY2024" or "Q1 2025"."""

    symbol: str
    label: str
    end: date
    revenue: int
    gross_profit: int
    operating_income: int
    net_income: int
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A news article about one or several stocks."""

    title: str
    text: str
    publisher: str
    published: datetime
    url: str
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketStatus:
    """Whether the stock market trades at `now`. `session` is open, closed, pre-market or after-hours."""

    now: datetime
    session: str
    exchanges: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A page that web search finds. `score` is how well it fits, between 0 and 1."""

    title: str
    url: str
    content: str
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel of a chat workspace. Channel(id="C0GENERAL1", name="general", purpose="Company-wide news")"""

    id: str
    name: str
    purpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """A message in a channel. `timestamp` is Slack's: seconds and a serial number, as in "1751034600.000200"."""

    channel_id: str
    user: str
    text: str
    timestamp: str
