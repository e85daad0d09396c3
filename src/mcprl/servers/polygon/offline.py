"""Stocks of an offline world."""

from __future__ import annotations

from datetime import date

from mcprl.servers.polygon.source import TickerDetails
from mcprl.world import Market
from mcprl.world.facts import Article, Bar, Frequency, MarketStatus

__all__ = ["OfflinePolygon"]


class OfflinePolygon:
    """The stocks of one market: all of them common stock, and traded in dollars."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def bars(self, ticker: str, start: date, end: date, frequency: Frequency) -> tuple[Bar, ...]:
        return self._market.bars(ticker, start, end, frequency) or ()

    async def previous_close(self, ticker: str) -> Bar | None:
        return self._market.previous_close(ticker)

    async def details(self, ticker: str) -> TickerDetails | None:
        company, quote = self._market.company(ticker), self._market.quote(ticker)
        if company is None or quote is None:
            return None
        return TickerDetails(
            company=company, market="stocks", type="CS", active=True, currency="usd", market_cap=quote.market_cap
        )

    async def news(self, ticker: str, limit: int) -> tuple[Article, ...]:
        return self._market.news([ticker], limit)

    async def status(self) -> MarketStatus:
        return self._market.status()
