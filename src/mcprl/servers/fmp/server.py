"""The MCP server `fmp`: stocks, live from Financial Modeling Prep or from an offline world."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field, RootModel
from typing_extensions import TypedDict

from mcprl.servers.fmp import texts
from mcprl.servers.fmp.live import LiveFmp, fmp_upstream
from mcprl.servers.fmp.offline import OfflineFmp
from mcprl.servers.fmp.source import FmpSource, Profile
from mcprl.servers.making import answer, live_or_offline, read_only
from mcprl.servers.stock_answers import checked_symbol, unknown_symbol
from mcprl.world.facts import Article, Company, Period, Quote, Statement

__all__ = ["make_server"]

_Symbol = Annotated[str, Field(description="Ticker symbol")]
_MaxMovers = Annotated[int, Field(ge=1, le=100, description="How many at most")]
_MaxMatches = Annotated[int, Field(ge=1, le=50, description="How many at most")]
_MAX_QUERY_CHARS = 200
_MAX_SYMBOLS = 20


class QuoteAnswer(RootModel[Quote]):
    """A stock now."""


class ProfileAnswer(RootModel[Profile]):
    """A company and its market capitalisation."""


class Statements(TypedDict):
    """Income statements, newest first."""

    symbol: str
    statements: list[Statement]


class Movers(TypedDict):
    """Stocks, the largest change first."""

    quotes: list[Quote]


class Matches(TypedDict):
    """Companies that a search found."""

    query: str
    companies: list[Company]


class News(TypedDict):
    """Articles, newest first."""

    articles: list[Article]


class Change(TypedDict):
    """A change since the previous close, in dollars and in per cent (1.5 is 1.5%)."""

    symbol: str
    change: float
    change_percent: float


class PreviousClose(TypedDict):
    """The price at the end of the last trading day before today."""

    symbol: str
    previous_close: float


class _Tools:
    """The tools over one source. Names of methods are names of tools."""

    def __init__(self, source: FmpSource) -> None:
        self._source = source

    async def fmp_get_quote(self, symbol: _Symbol) -> Annotated[CallToolResult, QuoteAnswer]:
        """Price, change, day range, volume, market cap and, where known, P/E of a stock."""
        quote = await self._quote(symbol)
        return answer(quote, texts.quote(quote))

    async def fmp_get_company_profile(self, symbol: _Symbol) -> Annotated[CallToolResult, ProfileAnswer]:
        """Industry, sector, CEO, market cap and description of a company."""
        symbol = checked_symbol(symbol)
        profile = await self._source.profile(symbol)
        if profile is None:
            raise unknown_symbol(symbol)
        return answer(profile, texts.profile(profile))

    async def fmp_get_income_statement(
        self,
        symbol: _Symbol,
        period: Annotated[Literal["annual", "quarterly"], Field(description="Length of a period")] = "annual",
        limit: Annotated[int, Field(ge=1, le=40, description="How many periods at most")] = 2,
    ) -> Annotated[CallToolResult, Statements]:
        """Revenue, profits and EPS of a company, newest period first."""
        symbol = checked_symbol(symbol)
        statements = await self._source.statements(symbol, Period(period), limit)
        if not statements:
            raise ToolError(f"No {period} income statement was found for {symbol!r}. Check the symbol.")
        return answer({"symbol": symbol, "statements": statements}, texts.statements(symbol, statements))

    async def fmp_get_market_gainers(self, limit: _MaxMovers = 10) -> Annotated[CallToolResult, Movers]:
        """Stocks that rose most today."""
        quotes = await self._source.gainers(limit)
        return answer({"quotes": quotes}, texts.movers("Top Market Gainers", quotes))

    async def fmp_get_market_losers(self, limit: _MaxMovers = 10) -> Annotated[CallToolResult, Movers]:
        """Stocks that fell most today."""
        quotes = await self._source.losers(limit)
        return answer({"quotes": quotes}, texts.movers("Top Market Losers", quotes))

    async def fmp_search_ticker(
        self,
        query: Annotated[str, Field(description="Company name or symbol, or part of it")],
        limit: _MaxMatches = 10,
    ) -> Annotated[CallToolResult, Matches]:
        """Find ticker symbols of companies."""
        query = query.strip()
        if not query or len(query) > _MAX_QUERY_CHARS:
            raise ToolError(f"Search for a company's name or symbol, of 1 to {_MAX_QUERY_CHARS} characters.")
        companies = await self._source.search(query, limit)
        return answer({"query": query, "companies": companies}, texts.matches(query, companies))

    async def fmp_get_stock_news(
        self,
        tickers: Annotated[str, Field(description="Symbols, comma-separated; empty: all stocks")] = "",
        limit: _MaxMatches = 10,
    ) -> Annotated[CallToolResult, News]:
        """Latest news about stocks."""
        symbols = [checked_symbol(ticker) for ticker in tickers.split(",") if ticker.strip()]
        if len(symbols) > _MAX_SYMBOLS:
            raise ToolError(f"{len(symbols)} tickers are too many; ask for at most {_MAX_SYMBOLS}.")
        articles = await self._source.news(symbols, limit)
        return answer({"articles": articles}, texts.news(symbols, articles))

    async def fmp_get_change_percent(self, symbol: _Symbol) -> Annotated[CallToolResult, Change]:
        """Change of a stock since the previous close, in per cent."""
        quote = await self._quote(symbol)
        change = {"symbol": quote.symbol, "change": quote.change, "change_percent": quote.change_percent}
        return answer(change, texts.change(quote))

    async def fmp_get_previous_close(self, symbol: _Symbol) -> Annotated[CallToolResult, PreviousClose]:
        """Previous closing price of a stock."""
        quote = await self._quote(symbol)
        close = {"symbol": quote.symbol, "previous_close": quote.previous_close}
        return answer(close, texts.previous_close(quote))

    async def _quote(self, symbol: str) -> Quote:
        symbol = checked_symbol(symbol)
        quote = await self._source.quote(symbol)
        if quote is None:
            raise unknown_symbol(symbol)
        return quote


def make_server(*, world: int | None = None) -> MCPServer:
    """The server, not yet running: of the offline world with that seed, or live for None."""
    server, source = live_or_offline("fmp", world, upstream=fmp_upstream, live=LiveFmp, offline=OfflineFmp)
    tools = _Tools(source)
    for tool in (
        tools.fmp_get_quote,
        tools.fmp_get_company_profile,
        tools.fmp_get_income_statement,
        tools.fmp_get_market_gainers,
        tools.fmp_get_market_losers,
        tools.fmp_search_ticker,
        tools.fmp_get_stock_news,
        tools.fmp_get_change_percent,
        tools.fmp_get_previous_close,
    ):
        server.add_tool(tool, annotations=read_only(is_live=world is None))
    return server
