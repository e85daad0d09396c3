"""What the search tools need of whoever searches."""

from __future__ import annotations

from typing import Literal, Protocol

from mcprl.world.facts import Document

__all__ = ["Depth", "SearchSource"]

Depth = Literal["basic", "advanced"]


class SearchSource(Protocol):
    """Searches pages. A query that it refuses is a ToolError, a failure of its own an MCPError."""

    async def search(self, query: str, limit: int, depth: Depth) -> tuple[Document, ...]:
        """At most `limit` pages, the one that fits best first."""
        ...

    async def answer(self, query: str) -> str:
        """A short direct answer; empty where there is none."""
        ...
