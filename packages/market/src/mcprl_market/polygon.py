"""The MCP server `polygon`: stocks, live from Polygon or from an offline world."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import Field, RootModel
from typing_extensions import TypedDict

from mcprl.secrets import SECRETS
from mcprl_market.making import (
    add_tools,
    answer,
    checked_symbol,
    known,
    labelled,
    live_or_offline,
    money,
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
    path_segment,
    required_key,
    upstream_fault,
)
from mcprl_market.world import Market
from mcprl_market.world.facts import Article, Bar, Company, Frequency, MarketStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TickerDetails:
    """A company and how its stock trades: TickerDetails(company=Company(symbol="VLKN", …), market="stocks", type="CS",
    active=True, currency="usd", market_cap=109_506_560_000)
    """

    company: Company
    market: str
    type: str
    active: bool
    currency: str
    market_cap: int | None = None


_NAME = "polygon"
_NOT_FOUND = 404
_NEW_YORK = ZoneInfo("America/New_York")
_TIMESPANS = {Frequency.DAILY: "day", Frequency.HOURLY: "hour", Frequency.MINUTE: "minute"}
_WELL = frozenset({"OK", "DELAYED"})
_MAX_ITEMS = 50_000
"""The API's limit of base bars per response. A base bar is a day, or a minute for shorter bars."""


def polygon_upstream() -> Upstream:
    """Return the client of the API at POLYGON_BASE_URL, or at its default address, with the key POLYGON_API_KEY."""
    key = required_key(_NAME, "POLYGON_API_KEY")
    return Upstream(_NAME, base_url("POLYGON_BASE_URL", "https://api.polygon.io"), params={"apiKey": key})


class LivePolygon:
    """Calls the API. An unknown ticker gives None or an empty result; a failure of the API raises MCPError."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def bars(self, ticker: str, start: date, end: date, frequency: Frequency) -> tuple[Bar, ...]:
        path = f"/v2/aggs/ticker/{path_segment(ticker)}/range/1/{_TIMESPANS[frequency]}/{start}/{end}"
        found = await self._ask("aggs", path, {"adjusted": "true", "sort": "asc", "limit": _MAX_ITEMS})
        if found is None or "results" not in found:
            return ()
        if "next_url" in found:
            raise upstream_fault(_NAME, "answered with only a part of the bars")
        return tuple(_bar(ticker, bar) for bar in found.objects("results"))

    async def previous_close(self, ticker: str) -> Bar | None:
        found = await self._ask("prev", f"/v2/aggs/ticker/{path_segment(ticker)}/prev", {"adjusted": "true"})
        if found is None or "results" not in found:
            return None
        bars = found.objects("results")
        return _bar(ticker, bars[0]) if bars else None

    async def details(self, ticker: str) -> TickerDetails | None:
        found = await self._ask("tickers", f"/v3/reference/tickers/{path_segment(ticker)}")
        return None if found is None else _details(found.fields("results"))

    async def news(self, ticker: str, limit: int) -> tuple[Article, ...]:
        params: dict[str, str | int] = {"ticker": ticker, "order": "desc", "sort": "published_utc", "limit": limit}
        found = await self._ask("news", "/v2/reference/news", params)
        return () if found is None else tuple(map(_article, found.objects("results")[:limit]))

    async def status(self) -> MarketStatus:
        path = "/v1/marketstatus/now"
        found = await self._ask("marketstatus", path)
        if found is None:
            raise upstream_fault(_NAME, f"has no {path} at its address")
        session = found.text("market")
        if session == "extended-hours":
            session = "pre-market" if found.flag("earlyHours") else "after-hours"
        now, exchanges = _moment(found, "serverTime"), tuple(found.texts_by_name("exchanges").items())
        return MarketStatus(now=now, session=session, exchanges=exchanges)

    async def _ask(self, where: str, path: str, params: Mapping[str, str | int] | None = None) -> JsonFields | None:
        """Return the fields of a response; None if nothing was found."""
        try:
            found = JsonFields(_NAME, where, await self._upstream.get(path, params))
        except UpstreamRefusal as refusal:
            if refusal.status == _NOT_FOUND:
                return None
            raise ToolError(f"The request was refused: {refusal.text}") from None
        status = found.maybe_text("status")
        if status is None or status in _WELL:
            return found
        if status == "NOT_FOUND":
            return None
        detail = found.maybe_text("error") or found.maybe_text("message") or ""
        wait_s = UNSAID_WAIT_S if "exceeded the maximum requests" in detail else None
        raise upstream_fault(_NAME, f"answered with status {status}: {SECRETS.redact(detail)[:300]}", wait_s)


def _bar(ticker: str, fields: JsonFields) -> Bar:
    try:
        start = datetime.fromtimestamp(fields.number("t") / 1000, UTC).astimezone(_NEW_YORK)
    except (ValueError, OverflowError, OSError):
        raise fields.wrong("t", "a time in milliseconds") from None
    first, high, low, last = (fields.number(name) for name in "ohlc")
    return Bar(symbol=ticker, start=start, open=first, high=high, low=low, close=last, volume=fields.whole("v"))


def _details(fields: JsonFields) -> TickerDetails:
    company = Company(
        symbol=fields.text("ticker"),
        name=fields.text("name"),
        exchange=fields.maybe_text("primary_exchange") or "",
        industry=fields.maybe_text("sic_description") or "",
        country=(fields.maybe_text("locale") or "").upper(),
        employees=fields.maybe_whole("total_employees"),
        website=fields.maybe_text("homepage_url") or "",
        description=fields.maybe_text("description") or "",
        shares=fields.maybe_whole("share_class_shares_outstanding"),
    )
    return TickerDetails(
        company=company,
        market=fields.text("market"),
        type=fields.maybe_text("type") or "",
        active=fields.flag("active"),
        currency=fields.maybe_text("currency_name") or "",
        market_cap=fields.maybe_whole("market_cap"),
    )


def _article(fields: JsonFields) -> Article:
    return Article(
        title=fields.text("title"),
        text=fields.maybe_text("description") or "",
        publisher=fields.fields("publisher").text("name"),
        published=_moment(fields, "published_utc"),
        url=fields.text("article_url"),
        symbols=tuple(fields.maybe_texts("tickers")),
    )


def _moment(fields: JsonFields, name: str) -> datetime:
    """Return a time in the time zone of New York."""
    try:
        moment = datetime.fromisoformat(fields.text(name))
        if moment.tzinfo is None:
            raise ValueError(name)
        return moment.astimezone(_NEW_YORK)
    except (ValueError, OverflowError):
        raise fields.wrong(name, "a time such as 2025-06-30T13:30:00Z") from None


class OfflinePolygon:
    """The stocks of one market. All are common stock, traded in dollars."""

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


MAX_BARS_SHOWN = 30
"""The most bars in a text. The structured answer has all bars."""


def bars_text(ticker: str, start: date, end: date, frequency: Frequency, found: Sequence[Bar]) -> str:
    shown = found[-MAX_BARS_SHOWN:]
    is_cut = len(shown) < len(found)
    lines = [
        f"**{ticker} Price Data ({frequency}):**",
        f"Period: {start} to {end}",
        f"Records: {len(found)}",
        "",
        "**Summary:**",
        f"High: {money(max(bar.high for bar in found))}",
        f"Low: {money(min(bar.low for bar in found))}",
        f"Avg Volume: {whole(round(sum(bar.volume for bar in found) / len(found)))}",
        "",
        f"**Recent Data (the last {len(shown)} of {len(found)} records):**" if is_cut else "**Data:**",
    ]
    return "\n".join([*lines, *(_bar_text(bar, frequency) for bar in shown)])


def previous_close_text(bar: Bar) -> str:
    prices = {"Open": bar.open, "High": bar.high, "Low": bar.low, "Close": bar.close}
    lines = [f"{name}: {money(price)}" for name, price in prices.items()]
    head = [f"**{bar.symbol} Previous Close:**", f"Date: {bar.start:%Y-%m-%d}"]
    return "\n".join([*head, *lines, f"Volume: {whole(bar.volume)}"])


def details_text(found: TickerDetails) -> str:
    company = found.company
    fields = {
        "Name": company.name,
        "Market": found.market,
        "Primary Exchange": company.exchange,
        "Type": found.type,
        "Active": str(found.active),
        "Currency": found.currency,
        "Industry": company.industry,
        "Market Cap": "" if found.market_cap is None else f"${whole(found.market_cap)}",
        "Employees": "" if company.employees is None else whole(company.employees),
        "Description": shortened(company.description),
    }
    return labelled(f"{company.symbol} Ticker Details:", fields)


def news_text(ticker: str, found: Sequence[Article]) -> str:
    if not found:
        return f"No news was found for {ticker}."
    parts = [f"**Polygon News for {ticker}:**\n"]
    for article in found:
        parts += [
            f"**{article.published:%Y-%m-%d}:**",
            f"Title: {article.title}",
            f"Description: {shortened(article.text)}",
            f"Publisher: {article.publisher}",
            f"Tickers: {', '.join(article.symbols)}",
            f"URL: {article.url}",
            "---",
        ]
    return "\n".join(parts)


def status_text(found: MarketStatus) -> str:
    time = found.now.isoformat(timespec="seconds")
    lines = ["**Market Status:**", f"Market: {found.session}", f"Server Time: {time}"]
    if found.exchanges:
        lines += ["", "**Exchanges:**", *(f"{name}: {session}" for name, session in found.exchanges)]
    return "\n".join(lines)


def _bar_text(bar: Bar, frequency: Frequency) -> str:
    time = f"{bar.start:%Y-%m-%d}" if frequency is Frequency.DAILY else f"{bar.start:%Y-%m-%d %H:%M}"
    prices = f"O={money(bar.open)} H={money(bar.high)} L={money(bar.low)} C={money(bar.close)}"
    return f"{time}: {prices} V={whole(bar.volume)}"


MAX_DAYS = {Frequency.DAILY: 7300, Frequency.HOURLY: 70, Frequency.MINUTE: 7}
"""The most calendar days in one series: about 5,000 bars, including hours and minutes outside trading hours."""

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
    """The tools of one data source. Each public method is a tool of the same name."""

    def __init__(self, source: LivePolygon | OfflinePolygon) -> None:
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
        return answer(series, bars_text(ticker, start, end, step, bars))

    async def polygon_get_news(
        self, ticker: _Ticker, limit: Annotated[int, Field(ge=1, le=50, description="How many at most")] = 10
    ) -> Annotated[CallToolResult, News]:
        """Latest news about a stock."""
        ticker = checked_symbol(ticker)
        articles = await self._source.news(ticker, limit)
        return answer({"ticker": ticker, "articles": articles}, news_text(ticker, articles))

    async def polygon_get_ticker_details(self, ticker: _Ticker) -> Annotated[CallToolResult, DetailsAnswer]:
        """Name, exchange, market cap and description of a stock."""
        ticker = checked_symbol(ticker)
        details = known(ticker, await self._source.details(ticker))
        return answer(details, details_text(details))

    async def polygon_get_previous_close(self, ticker: _Ticker) -> Annotated[CallToolResult, BarAnswer]:
        """Open, high, low, close and volume of a stock on the last full trading day."""
        ticker = checked_symbol(ticker)
        bar = known(ticker, await self._source.previous_close(ticker))
        return answer(bar, previous_close_text(bar))

    async def polygon_get_market_status(self) -> Annotated[CallToolResult, StatusAnswer]:
        """Whether the stock market is open now, and its time."""
        status = await self._source.status()
        return answer(status, status_text(status))


def make_server(*, world: int | None = None) -> MCPServer:
    """Create the server without starting it. It serves the offline world of seed `world`; None: live data."""
    server, source = live_or_offline(_NAME, world, upstream=polygon_upstream, live=LivePolygon, offline=OfflinePolygon)
    add_tools(server, _Tools(source), read_only(is_live=world is None))
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
