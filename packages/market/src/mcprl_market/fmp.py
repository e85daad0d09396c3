"""The MCP server `fmp`: stocks, live from Financial Modeling Prep or from an offline world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal, cast
from zoneinfo import ZoneInfo

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field, RootModel
from typing_extensions import TypedDict

from mcprl.concurrency import run_all
from mcprl.secrets import SECRETS
from mcprl_market.making import (
    add_tools,
    answer,
    checked_symbol,
    known,
    labelled,
    live_or_offline,
    money,
    percent,
    read_only,
    shortened,
    whole,
)
from mcprl_market.upstream import (
    UNSAID_WAIT_S,
    JsonFields,
    Upstream,
    UpstreamRefusal,
    base_url,
    json_objects,
    required_key,
    upstream_fault,
)
from mcprl_market.world import Market
from mcprl_market.world.facts import Article, Company, Period, Quote, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A company and what it is worth: Profile(company=Company(symbol="VLKN", …), market_cap=109_506_560_000)"""

    company: Company
    market_cap: int | None = None


Side = Literal["gainers", "losers"]

_NAME = "fmp"
_NOT_FOUND = 404
_NEW_YORK = ZoneInfo("America/New_York")
_PERIODS = {Period.ANNUAL: "annual", Period.QUARTERLY: "quarter"}


def fmp_upstream() -> Upstream:
    """Return the client of the API at FMP_BASE_URL, or at its default address, with the key FMP_API_KEY."""
    key = required_key(_NAME, "FMP_API_KEY")
    return Upstream(_NAME, base_url("FMP_BASE_URL", "https://financialmodelingprep.com/stable"), params={"apikey": key})


class LiveFmp:
    """Calls the API. An unknown symbol gives None or an empty result; a failure of the API raises MCPError."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def quote(self, symbol: str) -> Quote | None:
        found = await self._list("/quote", {"symbol": symbol})
        return _quote(found[0]) if found else None

    async def profile(self, symbol: str) -> Profile | None:
        found = await self._list("/profile", {"symbol": symbol})
        return _profile(found[0]) if found else None

    async def statements(self, symbol: str, period: Period, limit: int) -> tuple[Statement, ...]:
        wanted: dict[str, str | int] = {"symbol": symbol, "period": _PERIODS[period], "limit": limit}
        return tuple(map(_statement, (await self._list("/income-statement", wanted))[:limit]))

    async def movers(self, side: Side, limit: int) -> tuple[Quote, ...]:
        return tuple(map(_mover, (await self._list(f"/biggest-{side}"))[:limit]))

    async def search(self, query: str, limit: int) -> tuple[Company, ...]:
        """Return companies that match by symbol, then companies that match by name, without duplicates."""
        wanted: dict[str, str | int] = {"query": query, "limit": limit}
        by_symbol, by_name = await run_all([self._list("/search-symbol", wanted), self._list("/search-name", wanted)])
        found: dict[str, Company] = {}
        for company in map(_match, [*by_symbol, *by_name]):
            found.setdefault(company.symbol, company)
        return tuple(found.values())[:limit]

    async def news(self, symbols: Sequence[str], limit: int) -> tuple[Article, ...]:
        if symbols:
            found = await self._list("/news/stock", {"symbols": ",".join(symbols), "limit": limit})
        else:
            found = await self._list("/news/stock-latest", {"page": 0, "limit": limit})
        return tuple(map(_article, found[:limit]))

    async def _list(self, path: str, params: Mapping[str, str | int] | None = None) -> list[JsonFields]:
        try:
            found = await self._upstream.get(path, params)
        except UpstreamRefusal as refusal:
            if refusal.status == _NOT_FOUND:
                raise upstream_fault(_NAME, f"does not have {path} (HTTP 404: {refusal.text})") from None
            raise ToolError(f"The request was refused: {refusal.text}") from None
        message: Any = cast("dict[str, Any]", found).get("Error Message") if isinstance(found, dict) else None
        if isinstance(message, str):
            is_busy = "limit reach" in message.lower()
            detail = SECRETS.redact(message)[:300]  # redact before cutting, because half a key is not recognized
            raise upstream_fault(_NAME, f"answered with an error: {detail}", UNSAID_WAIT_S if is_busy else None)
        return json_objects(_NAME, path.removeprefix("/"), found)


def _quote(fields: JsonFields) -> Quote:
    return Quote(
        symbol=fields.text("symbol"),
        name=fields.maybe_text("name") or "",
        price=fields.number("price"),
        previous_close=fields.number("previousClose"),
        change=fields.number("change"),
        change_percent=fields.number("changePercentage"),
        open=fields.maybe_number("open"),
        day_low=fields.maybe_number("dayLow"),
        day_high=fields.maybe_number("dayHigh"),
        volume=fields.maybe_whole("volume"),
        market_cap=fields.maybe_whole("marketCap"),
    )


def _mover(fields: JsonFields) -> Quote:
    price, change = fields.number("price"), fields.number("change")
    symbol, name, percent = fields.text("symbol"), fields.maybe_text("name") or "", fields.number("changesPercentage")
    before = round(price - change, 6)  # not in the response; rounding removes floating-point noise
    return Quote(symbol=symbol, name=name, price=price, previous_close=before, change=change, change_percent=percent)


def _profile(fields: JsonFields) -> Profile:
    employees = (fields.maybe_text("fullTimeEmployees") or "").replace(",", "")
    company = Company(
        symbol=fields.text("symbol"),
        name=fields.text("companyName"),
        exchange=fields.maybe_text("exchange") or "",
        sector=fields.maybe_text("sector") or "",
        industry=fields.maybe_text("industry") or "",
        ceo=fields.maybe_text("ceo") or "",
        country=fields.maybe_text("country") or "",
        city=fields.maybe_text("city") or "",
        employees=int(employees) if employees.isascii() and employees.isdigit() else None,
        website=fields.maybe_text("website") or "",
        description=fields.maybe_text("description") or "",
    )
    return Profile(company=company, market_cap=fields.maybe_whole("marketCap"))


def _statement(fields: JsonFields) -> Statement:
    year, period = fields.text("fiscalYear"), fields.text("period")
    try:
        end = date.fromisoformat(fields.text("date"))
    except ValueError:
        raise fields.wrong("date", "a date such as 2025-06-30") from None
    return Statement(
        symbol=fields.text("symbol"),
        label=f"FY{year}" if period == "FY" else f"{period} {year}",
        end=end,
        revenue=fields.whole("revenue"),
        gross_profit=fields.whole("grossProfit"),
        operating_income=fields.whole("operatingIncome"),
        net_income=fields.whole("netIncome"),
        eps=fields.number("eps"),
    )


def _match(fields: JsonFields) -> Company:
    exchange = fields.maybe_text("exchangeFullName") or fields.maybe_text("exchange") or ""
    return Company(symbol=fields.text("symbol"), name=fields.maybe_text("name") or "", exchange=exchange)


def _article(fields: JsonFields) -> Article:
    symbol = fields.maybe_text("symbol")
    try:
        published = datetime.fromisoformat(fields.text("publishedDate"))
    except ValueError:
        raise fields.wrong("publishedDate", "a time such as 2025-06-30 09:30:00") from None
    return Article(
        title=fields.text("title"),
        text=fields.maybe_text("text") or "",
        publisher=fields.maybe_text("site") or "",
        published=published.replace(tzinfo=_NEW_YORK) if published.tzinfo is None else published.astimezone(_NEW_YORK),
        url=fields.text("url"),
        symbols=(symbol,) if symbol else (),
    )


class OfflineFmp:
    """The stocks of one market."""

    def __init__(self, market: Market) -> None:
        self._market = market

    async def quote(self, symbol: str) -> Quote | None:
        return self._market.quote(symbol)

    async def profile(self, symbol: str) -> Profile | None:
        company, quote = self._market.company(symbol), self._market.quote(symbol)
        return Profile(company=company, market_cap=quote.market_cap) if company and quote else None

    async def statements(self, symbol: str, period: Period, limit: int) -> tuple[Statement, ...]:
        return self._market.statements(symbol, period, limit) or ()

    async def movers(self, side: Side, limit: int) -> tuple[Quote, ...]:
        return self._market.gainers(limit) if side == "gainers" else self._market.losers(limit)

    async def search(self, query: str, limit: int) -> tuple[Company, ...]:
        return self._market.search(query, limit)

    async def news(self, symbols: Sequence[str], limit: int) -> tuple[Article, ...]:
        return self._market.news(symbols or None, limit)


def quote_text(found: Quote) -> str:
    low, high = found.day_low, found.day_high
    fields = {
        "Price": money(found.price),
        "Change": f"{money(found.change)} ({percent(found.change_percent)})",
        "Previous Close": money(found.previous_close),
        "Open": "" if found.open is None else money(found.open),
        "Day Range": "" if low is None or high is None else f"{money(low)} - {money(high)}",
        "Volume": "" if found.volume is None else whole(found.volume),
        "Market Cap": "" if found.market_cap is None else f"${whole(found.market_cap)}",
        "P/E Ratio": "" if found.pe is None else f"{found.pe:.2f}",
    }
    return labelled(f"{found.symbol} - {found.name}" if found.name else found.symbol, fields)


def profile_text(found: Profile) -> str:
    company = found.company
    fields = {
        "Industry": company.industry,
        "Sector": company.sector,
        "Exchange": company.exchange,
        "Country": company.country,
        "City": company.city,
        "Website": company.website,
        "CEO": company.ceo,
        "Employees": "" if company.employees is None else whole(company.employees),
        "Market Cap": "" if found.market_cap is None else f"${whole(found.market_cap)}",
        "Description": shortened(company.description),
    }
    return labelled(f"{company.name} ({company.symbol})", fields)


def statements_text(symbol: str, found: Sequence[Statement]) -> str:
    parts = [f"**Income Statement for {symbol}**\n"]
    for statement in found:
        parts += [
            f"Period: {statement.label} (ended {statement.end})",
            f"Revenue: ${whole(statement.revenue)}",
            f"Gross Profit: ${whole(statement.gross_profit)}",
            f"Operating Income: ${whole(statement.operating_income)}",
            f"Net Income: ${whole(statement.net_income)}",
            f"EPS: {money(statement.eps)}",
            "---",
        ]
    return "\n".join(parts)


def movers_text(title: str, found: Sequence[Quote]) -> str:
    lines = [f"{stock.symbol}: {money(stock.price)} ({_signed_change(stock)})" for stock in found]
    return "\n".join([f"**{title}**\n", *(lines or ["None today."])])


def matches_text(query: str, found: Sequence[Company]) -> str:
    if not found:
        return f"No company was found for {query!r}. Try a shorter or another name."
    parts = [f"**Search Results for {query!r}**\n"]
    for company in found:
        parts += [f"Symbol: {company.symbol}", f"Name: {company.name}", f"Exchange: {company.exchange}", "---"]
    return "\n".join(parts)


def news_text(symbols: Sequence[str], found: Sequence[Article]) -> str:
    if not found:
        return f"No news was found for {', '.join(symbols) or 'any stock'}."
    parts = ["**Stock News**\n"]
    for article in found:
        parts += [
            f"Title: {article.title}",
            f"Text: {shortened(article.text)}",
            f"URL: {article.url}",
            f"Published: {article.published:%Y-%m-%d %H:%M:%S}",
            f"Site: {article.publisher}",
            "---",
        ]
    return "\n".join(parts)


def _signed_change(stock: Quote) -> str:
    sign = "+" if stock.change >= 0 else ""
    return f"{sign}{money(stock.change).removeprefix('$')} / {sign}{percent(stock.change_percent)}"


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
    """The tools of one data source. Each public method is a tool of the same name."""

    def __init__(self, source: LiveFmp | OfflineFmp) -> None:
        self._source = source

    async def fmp_get_quote(self, symbol: _Symbol) -> Annotated[CallToolResult, QuoteAnswer]:
        """Price, change, day range, volume, market cap and, where known, P/E of a stock."""
        quote = await self._quote(symbol)
        return answer(quote, quote_text(quote))

    async def fmp_get_company_profile(self, symbol: _Symbol) -> Annotated[CallToolResult, ProfileAnswer]:
        """Industry, sector, CEO, market cap and description of a company."""
        symbol = checked_symbol(symbol)
        profile = known(symbol, await self._source.profile(symbol))
        return answer(profile, profile_text(profile))

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
        return answer({"symbol": symbol, "statements": statements}, statements_text(symbol, statements))

    async def fmp_get_market_gainers(self, limit: _MaxMovers = 10) -> Annotated[CallToolResult, Movers]:
        """Stocks that rose most today."""
        quotes = await self._source.movers("gainers", limit)
        return answer({"quotes": quotes}, movers_text("Top Market Gainers", quotes))

    async def fmp_get_market_losers(self, limit: _MaxMovers = 10) -> Annotated[CallToolResult, Movers]:
        """Stocks that fell most today."""
        quotes = await self._source.movers("losers", limit)
        return answer({"quotes": quotes}, movers_text("Top Market Losers", quotes))

    async def fmp_search_ticker(
        self, query: Annotated[str, Field(description="Company name or symbol, or part of it")], limit: _MaxMatches = 10
    ) -> Annotated[CallToolResult, Matches]:
        """Find ticker symbols of companies."""
        query = query.strip()
        if not query or len(query) > _MAX_QUERY_CHARS:
            raise ToolError(f"Search for a company's name or symbol, of 1 to {_MAX_QUERY_CHARS} characters.")
        companies = await self._source.search(query, limit)
        return answer({"query": query, "companies": companies}, matches_text(query, companies))

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
        return answer({"articles": articles}, news_text(symbols, articles))

    async def fmp_get_change_percent(self, symbol: _Symbol) -> Annotated[CallToolResult, Change]:
        """Change of a stock since the previous close, in per cent."""
        quote = await self._quote(symbol)
        change = {"symbol": quote.symbol, "change": quote.change, "change_percent": quote.change_percent}
        text = f"**{quote.symbol} Change**\nChange: {percent(quote.change_percent)} ({money(quote.change)})"
        return answer(change, text)

    async def fmp_get_previous_close(self, symbol: _Symbol) -> Annotated[CallToolResult, PreviousClose]:
        """Previous closing price of a stock."""
        quote = await self._quote(symbol)
        close = {"symbol": quote.symbol, "previous_close": quote.previous_close}
        return answer(close, f"**{quote.symbol} Previous Close**\nPrevious Close: {money(quote.previous_close)}")

    async def _quote(self, symbol: str) -> Quote:
        symbol = checked_symbol(symbol)
        return known(symbol, await self._source.quote(symbol))


def make_server(*, world: int | None = None) -> MCPServer:
    """Create the server without starting it. It serves the offline world of seed `world`; None: live data."""
    server, source = live_or_offline("fmp", world, upstream=fmp_upstream, live=LiveFmp, offline=OfflineFmp)
    add_tools(server, _Tools(source), read_only(is_live=world is None))
    return server
