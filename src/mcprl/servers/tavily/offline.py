"""Web search in an offline world: its pages, and the facts that they are written from."""

from __future__ import annotations

from mcprl.servers.tavily.source import Depth
from mcprl.world import Market
from mcprl.world.facts import Document

__all__ = ["OfflineSearch"]


class OfflineSearch:
    """Searches the pages of one market. They are few and short, so a deeper search finds no more."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def search(self, query: str, limit: int, depth: Depth) -> tuple[Document, ...]:
        return self._market.documents(query, limit)

    async def answer(self, query: str) -> str:
        return self._market.answer(query)
