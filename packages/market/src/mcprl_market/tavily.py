"""The MCP server `tavily`: web search and short answers, live or from an offline world."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field
from typing_extensions import TypedDict

from mcprl_market.making import add_tools, answer, live_or_offline, read_only
from mcprl_market.upstream import JsonFields, Upstream, UpstreamRefusal, base_url, required_key, upstream_fault
from mcprl_market.world import Market
from mcprl_market.world.facts import Document

Depth = Literal["basic", "advanced"]

_NAME = "tavily"
_NOT_FOUND = 404
# An answer is written from the pages found, so it uses the advanced search and several pages.
_PAGES_FOR_AN_ANSWER = 5


def tavily_upstream() -> Upstream:
    """Return the client of Tavily at TAVILY_BASE_URL, or at its default address, with the key TAVILY_API_KEY."""
    key = required_key(_NAME, "TAVILY_API_KEY")
    address = base_url("TAVILY_BASE_URL", "https://api.tavily.com")
    return Upstream(_NAME, address, headers={"authorization": f"Bearer {key}"})


class LiveSearch:
    """Searches the web. A rejected query raises ToolError; a failure of the API raises MCPError."""

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
            if refusal.status == _NOT_FOUND:  # a search without results returns 200
                raise upstream_fault(_NAME, f"has no search at its address ({refusal})") from None
            raise ToolError(f"The search was refused: {refusal.text}") from None


def _document(result: JsonFields) -> Document:
    return Document(
        title=result.maybe_text("title") or "",
        url=result.text("url"),
        content=result.maybe_text("content") or "",
        score=result.maybe_number("score") or 0.0,
    )


class OfflineSearch:
    """Searches the pages of one market. They are few and short, so an advanced search finds nothing more."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def search(self, query: str, limit: int, depth: Depth) -> tuple[Document, ...]:
        return self._market.documents(query, limit)

    async def answer(self, query: str) -> str:
        return self._market.answer(query)


MAX_QUERY_CHARS = 400
"""Tavily's limit. It also applies offline, so that the policy learns it."""


class Found(TypedDict):
    """Pages for a query, the one that fits best first."""

    query: str
    results: list[Document]


class Answered(TypedDict):
    """A short answer to a question; empty where none was found."""

    query: str
    answer: str


class _Tools:
    """The tools of one data source. Each public method is a tool of the same name."""

    def __init__(self, source: LiveSearch | OfflineSearch) -> None:
        self._source = source

    async def tavily_search(
        self,
        query: Annotated[str, Field(description="What to search for")],
        max_results: Annotated[int, Field(ge=1, le=20, description="How many results at most")] = 5,
        search_depth: Annotated[Depth, Field(description="advanced: slower, more relevant content")] = "basic",
    ) -> Annotated[CallToolResult, Found]:
        """Search the web. Gives title, URL, content and relevance of each page found."""
        query = _checked(query)
        documents = await self._source.search(query, max_results, search_depth)
        text = "\n\n".join(map(_page_text, documents)) or f"No results for {query!r}. Try other words."
        return answer({"query": query, "results": documents}, text)

    async def tavily_qna_search(
        self, query: Annotated[str, Field(description="The question")]
    ) -> Annotated[CallToolResult, Answered]:
        """Answer a question directly, from a web search."""
        query = _checked(query)
        found = await self._source.answer(query)
        text = f"**Answer:** {found}" if found else f"No direct answer to {query!r} was found. Try tavily_search."
        return answer({"query": query, "answer": found}, text)


def make_server(*, world: int | None = None) -> MCPServer:
    """Create the server without starting it. It serves the offline world of seed `world`; None: live data."""
    server, source = live_or_offline("tavily", world, upstream=tavily_upstream, live=LiveSearch, offline=OfflineSearch)
    add_tools(server, _Tools(source), read_only(is_live=world is None))
    return server


def _checked(query: str) -> str:
    query = query.strip()
    if not query:
        raise ToolError("The query is empty. Say what to search for.")
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed. Shorten it.")
    return query


def _page_text(document: Document) -> str:
    return (
        f"**{document.title or document.url}**\n"
        f"URL: {document.url}\n"
        f"Content: {document.content}\n"
        f"Relevance Score: {document.score:.4f}\n"
        "---"
    )
