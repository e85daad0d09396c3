"""What the tools of `polygon` need of whoever knows the stocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Protocol

from mcprl.world.facts import Article, Bar, Company, Frequency, MarketStatus

__all__ = ["PolygonSource", "TickerDetails"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerDetails:
    """A company and how its stock trades: TickerDetails(company=Company(symbol="VLKN", …), market="stocks", type="CS",
    active=True, currency="usd", market_cap=109_506_560_000)
    """

    company: Company
    market: str
    type: str
    active: bool
    currency: str
    market_cap: int | None = None


class PolygonSource(Protocol):
    """Knows stocks. None, or nothing, where it knows no such ticker; a failure of its own is an MCPError."""

    async def bars(self, ticker: str, start: date, end: date, frequency: Frequency) -> tuple[Bar, ...]:
        """Oldest first, both days included."""
        ...

    async def previous_close(self, ticker: str) -> Bar | None:
        """The last full trading day."""
        ...

    async def details(self, ticker: str) -> TickerDetails | None: ...

    async def news(self, ticker: str, limit: int) -> tuple[Article, ...]:
        """Newest first."""
        ...

    async def status(self) -> MarketStatus: ...
