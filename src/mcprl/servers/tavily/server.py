"""The MCP server `tavily`: web search and short answers, live or from an offline world."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field
from typing_extensions import TypedDict

from mcprl.servers.making import answer, live_or_offline, read_only
from mcprl.servers.tavily.live import LiveSearch, tavily_upstream
from mcprl.servers.tavily.offline import OfflineSearch
from mcprl.servers.tavily.source import Depth, SearchSource
from mcprl.world.facts import Document

__all__ = ["MAX_QUERY_CHARS", "make_server"]

MAX_QUERY_CHARS = 400
"""The longest query that Tavily takes; the same offline, so that a policy learns it there."""


class Found(TypedDict):
    """Pages for a query, the one that fits best first."""

    query: str
    results: list[Document]


class Answered(TypedDict):
    """A short answer to a question; empty where none was found."""

    query: str
    answer: str


class _Tools:
    """The tools over one source. Names of methods are names of tools."""

    def __init__(self, source: SearchSource) -> None:
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
    """The server, not yet running: of the offline world with that seed, or live for None."""
    server, source = live_or_offline("tavily", world, upstream=tavily_upstream, live=LiveSearch, offline=OfflineSearch)
    tools = _Tools(source)
    for tool in (tools.tavily_search, tools.tavily_qna_search):
        server.add_tool(tool, annotations=read_only(is_live=world is None))
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
