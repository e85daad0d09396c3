"""The MCP server `polygon`: stocks, live from Polygon or from an offline world."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field, RootModel
from typing_extensions import TypedDict

from mcprl.servers.making import answer, live_or_offline, read_only
from mcprl.servers.polygon import texts
from mcprl.servers.polygon.live import LivePolygon, polygon_upstream
from mcprl.servers.polygon.offline import OfflinePolygon
from mcprl.servers.polygon.source import PolygonSource, TickerDetails
from mcprl.servers.stock_answers import checked_symbol, unknown_symbol
from mcprl.world.facts import Article, Bar, Frequency, MarketStatus

__all__ = ["MAX_DAYS", "make_server"]

MAX_DAYS = {Frequency.DAILY: 7300, Frequency.HOURLY: 70, Frequency.MINUTE: 7}
"""How many calendar days a series may span: some 5,000 bars, of hours and minutes outside trading hours included."""

_Ticker = Annotated[str, Field(description="Ticker symbol")]
_Day = Annotated[str, Field(description="YYYY-MM-DD")]
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


class Series(TypedDict):
    """Prices over time, oldest first: all bars, also where the text shows only the last."""

    ticker: str
    frequency: str
    bars: list[Bar]


class BarAnswer(RootModel[Bar]):
    """Prices of one day."""


class DetailsAnswer(RootModel[TickerDetails]):
    """A company and how its stock trades."""


class News(TypedDict):
    """Articles, newest first."""

    ticker: str
    articles: list[Article]


class StatusAnswer(RootModel[MarketStatus]):
    """Whether the market trades now."""


class _Tools:
    """The tools over one source. Names of methods are names of tools."""

    def __init__(self, source: PolygonSource) -> None:
        self._source = source

    async def polygon_get_aggs(
        self,
        ticker: _Ticker,
        start_date: _Day,
        end_date: _Day,
        frequency: Annotated[Literal["daily", "hourly", "minute"], Field(description="Length of a bar")] = "daily",
    ) -> Annotated[CallToolResult, Series]:
        """Open, high, low, close and volume of a stock over a range of days."""
        ticker, step = checked_symbol(ticker), Frequency(frequency)
        start, end = _checked_range(start_date, end_date, step)
        bars = await self._source.bars(ticker, start, end, step)
        if not bars:
            raise ToolError(
                f"No price data was found for {ticker} from {start} to {end}. "
                "Check the ticker, and that the market was open on some of these days."
            )
        series = {"ticker": ticker, "frequency": frequency, "bars": bars}
        return answer(series, texts.bars(ticker, start, end, step, bars))

    async def polygon_get_news(
        self,
        ticker: _Ticker,
        limit: Annotated[int, Field(ge=1, le=50, description="How many at most")] = 10,
    ) -> Annotated[CallToolResult, News]:
        """Latest news about a stock."""
        ticker = checked_symbol(ticker)
        articles = await self._source.news(ticker, limit)
        return answer({"ticker": ticker, "articles": articles}, texts.news(ticker, articles))

    async def polygon_get_ticker_details(self, ticker: _Ticker) -> Annotated[CallToolResult, DetailsAnswer]:
        """Name, exchange, market cap and description of a stock."""
        ticker = checked_symbol(ticker)
        details = await self._source.details(ticker)
        if details is None:
            raise unknown_symbol(ticker)
        return answer(details, texts.details(details))

    async def polygon_get_previous_close(self, ticker: _Ticker) -> Annotated[CallToolResult, BarAnswer]:
        """Open, high, low, close and volume of a stock on the last full trading day."""
        ticker = checked_symbol(ticker)
        bar = await self._source.previous_close(ticker)
        if bar is None:
            raise unknown_symbol(ticker)
        return answer(bar, texts.previous_close(bar))

    async def polygon_get_market_status(self) -> Annotated[CallToolResult, StatusAnswer]:
        """Whether the stock market is open now, and its time."""
        status = await self._source.status()
        return answer(status, texts.status(status))


def make_server(*, world: int | None = None) -> MCPServer:
    """The server, not yet running: of the offline world with that seed, or live for None."""
    server, source = live_or_offline(
        "polygon", world, upstream=polygon_upstream, live=LivePolygon, offline=OfflinePolygon
    )
    tools = _Tools(source)
    for tool in (
        tools.polygon_get_aggs,
        tools.polygon_get_news,
        tools.polygon_get_ticker_details,
        tools.polygon_get_previous_close,
        tools.polygon_get_market_status,
    ):
        server.add_tool(tool, annotations=read_only(is_live=world is None))
    return server


def _checked_range(start_date: str, end_date: str, frequency: Frequency) -> tuple[date, date]:
    start, end = _day("start_date", start_date), _day("end_date", end_date)
    if end < start:
        raise ToolError(f"end_date {end} is before start_date {start}. Swap them.")
    num_days = (end - start).days + 1
    if num_days > MAX_DAYS[frequency]:
        raise ToolError(
            f"{num_days} days are too many for {frequency} bars; ask for at most {MAX_DAYS[frequency]} days at once"
            + ("." if frequency is Frequency.DAILY else ", or for longer bars.")
        )
    return start, end


def _day(argument: str, text: str) -> date:
    text = text.strip()
    try:
        if _DAY.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass  # such as the 30th of February
    raise ToolError(f"{argument} {text!r} is not a date. Write it as YYYY-MM-DD, such as 2025-06-30.")
