"""What the tools of `fmp` need of whoever knows the stocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mcprl.world.facts import Article, Company, Period, Quote, Statement

__all__ = ["FmpSource", "Profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A company and what it is worth: Profile(company=Company(symbol="VLKN", …), market_cap=109_506_560_000)"""

    company: Company
    market_cap: int | None = None


class FmpSource(Protocol):
    """Knows stocks. None, or nothing, where it knows no such symbol; a failure of its own is an MCPError."""

    async def quote(self, symbol: str) -> Quote | None: ...

    async def profile(self, symbol: str) -> Profile | None: ...

    async def statements(self, symbol: str, period: Period, limit: int) -> tuple[Statement, ...]:
        """Newest first."""
        ...

    async def gainers(self, limit: int) -> tuple[Quote, ...]:
        """The largest gain first."""
        ...

    async def losers(self, limit: int) -> tuple[Quote, ...]:
        """The largest loss first."""
        ...

    async def search(self, query: str, limit: int) -> tuple[Company, ...]: ...

    async def news(self, symbols: Sequence[str], limit: int) -> tuple[Article, ...]:
        """Newest first; about any stock where no symbol is given."""
        ...
