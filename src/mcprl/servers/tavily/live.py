"""Web search as Tavily's API does it."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from mcprl.servers.json_fields import JsonFields
from mcprl.servers.tavily.source import Depth
from mcprl.servers.upstream import Upstream, UpstreamRefusal, base_url, required_key, upstream_fault
from mcprl.world.facts import Document

__all__ = ["LiveSearch", "tavily_upstream"]

_NAME = "tavily"
_NOT_FOUND = 404
# An answer is written from the pages found, so it is worth the deeper search and more pages than one.
_PAGES_FOR_AN_ANSWER = 5


def tavily_upstream() -> Upstream:
    """Tavily at TAVILY_BASE_URL, or at its own address, with the key TAVILY_API_KEY."""
    key = required_key(_NAME, "TAVILY_API_KEY")
    address = base_url("TAVILY_BASE_URL", "https://api.tavily.com")
    return Upstream(_NAME, address, headers={"authorization": f"Bearer {key}"})


class LiveSearch:
    """Searches the web."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def search(self, query: str, limit: int, depth: Depth) -> tuple[Document, ...]:
        found = await self._ask({"query": query, "max_results": limit, "search_depth": depth})
        return tuple(_document(result) for result in found.objects("results"))[:limit]

    async def answer(self, query: str) -> str:
        request = {"query": query, "max_results": _PAGES_FOR_AN_ANSWER, "search_depth": "advanced"}
        found = await self._ask({**request, "include_answer": True})
        return (found.maybe_text("answer") or "").strip()

    async def _ask(self, request: dict[str, Any]) -> JsonFields:
        try:
            return JsonFields(_NAME, "search", await self._upstream.post("/search", request))
        except UpstreamRefusal as refusal:
            if refusal.status == _NOT_FOUND:  # a search that finds nothing is answered with 200
                raise upstream_fault(_NAME, f"has no search at its address ({refusal})") from None
            raise ToolError(f"The search was refused: {refusal.text}") from None


def _document(result: JsonFields) -> Document:
    return Document(
        title=result.maybe_text("title") or "",
        url=result.text("url"),
        content=result.maybe_text("content") or "",
        score=result.maybe_number("score") or 0.0,
    )
