"""Stocks of an offline world."""

from __future__ import annotations

from collections.abc import Sequence

from mcprl.servers.fmp.source import Profile
from mcprl.world import Market
from mcprl.world.facts import Article, Company, Period, Quote, Statement

__all__ = ["OfflineFmp"]


class OfflineFmp:
    """The stocks of one market."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def quote(self, symbol: str) -> Quote | None:
        return self._market.quote(symbol)

    async def profile(self, symbol: str) -> Profile | None:
        company, quote = self._market.company(symbol), self._market.quote(symbol)
        if company is None or quote is None:
            return None
        return Profile(company=company, market_cap=quote.market_cap)

    async def statements(self, symbol: str, period: Period, limit: int) -> tuple[Statement, ...]:
        return self._market.statements(symbol, period, limit) or ()

    async def gainers(self, limit: int) -> tuple[Quote, ...]:
        return self._market.gainers(limit)

    async def losers(self, limit: int) -> tuple[Quote, ...]:
        return self._market.losers(limit)

    async def search(self, query: str, limit: int) -> tuple[Company, ...]:
        return self._market.search(query, limit)

    async def news(self, symbols: Sequence[str], limit: int) -> tuple[Article, ...]:
        return self._market.news(symbols or None, limit)
