"""Stocks as Polygon's API tells them.

Its answers hold a status of their own, also where HTTP says 200: OK, DELAYED (a cheaper plan: late, but right),
NOT_FOUND, and ERROR or NOT_AUTHORIZED, which are no answers and no fault of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from mcp.server.mcpserver.exceptions import ToolError

from mcprl.redact import SECRETS
from mcprl.servers.json_fields import JsonFields
from mcprl.servers.polygon.source import TickerDetails
from mcprl.servers.upstream import (
    UNSAID_WAIT_S,
    Upstream,
    UpstreamRefusal,
    base_url,
    path_segment,
    required_key,
    upstream_fault,
)
from mcprl.world.facts import Article, Bar, Company, Frequency, MarketStatus

__all__ = ["LivePolygon", "polygon_upstream"]

_NAME = "polygon"
_NOT_FOUND = 404
_NEW_YORK = ZoneInfo("America/New_York")
_TIMESPANS = {Frequency.DAILY: "day", Frequency.HOURLY: "hour", Frequency.MINUTE: "minute"}
_WELL = frozenset({"OK", "DELAYED"})
_MAX_ITEMS = 50_000
"""What the API reads for one answer at most: days, or for shorter bars minutes."""


def polygon_upstream() -> Upstream:
    """The API at POLYGON_BASE_URL, or at its own address, with the key POLYGON_API_KEY."""
    key = required_key(_NAME, "POLYGON_API_KEY")
    return Upstream(_NAME, base_url("POLYGON_BASE_URL", "https://api.polygon.io"), params={"apiKey": key})


class LivePolygon:
    """Asks the API."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def bars(self, ticker: str, start: date, end: date, frequency: Frequency) -> tuple[Bar, ...]:
        path = f"/v2/aggs/ticker/{path_segment(ticker)}/range/1/{_TIMESPANS[frequency]}/{start}/{end}"
        found = await self._ask("aggs", path, {"adjusted": "true", "sort": "asc", "limit": _MAX_ITEMS})
        if found is None or "results" not in found:
            return ()
        if "next_url" in found:
            raise upstream_fault(_NAME, "answered with a part of the bars only")
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
        if found is None:
            return ()
        return tuple(map(_article, found.objects("results")[:limit]))

    async def status(self) -> MarketStatus:
        path = "/v1/marketstatus/now"
        found = await self._ask("marketstatus", path)
        if found is None:
            raise upstream_fault(_NAME, f"has no {path} at its address")
        session = found.text("market")
        if session == "extended-hours":
            session = "pre-market" if found.flag("earlyHours") else "after-hours"
        return MarketStatus(
            now=_moment(found, "serverTime"),
            session=session,
            exchanges=tuple(found.texts_by_name("exchanges").items()),
        )

    async def _ask(self, where: str, path: str, params: Mapping[str, str | int] | None = None) -> JsonFields | None:
        """The fields of an answer; None where there is no such thing."""
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
        told = found.maybe_text("error") or found.maybe_text("message") or ""
        wait_s = UNSAID_WAIT_S if "exceeded the maximum requests" in told else None
        raise upstream_fault(_NAME, f"answered with status {status}: {SECRETS.redact(told)[:300]}", wait_s)


def _bar(ticker: str, fields: JsonFields) -> Bar:
    try:
        start = datetime.fromtimestamp(fields.number("t") / 1000, UTC).astimezone(_NEW_YORK)
    except (ValueError, OverflowError, OSError):
        raise fields.wrong("t", "a time in milliseconds") from None
    return Bar(
        symbol=ticker,
        start=start,
        open=fields.number("o"),
        high=fields.number("h"),
        low=fields.number("l"),
        close=fields.number("c"),
        volume=fields.whole("v"),
    )


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
    """A time with its zone, as it is in New York."""
    try:
        moment = datetime.fromisoformat(fields.text(name))
        if moment.tzinfo is None:
            raise ValueError(name)
        return moment.astimezone(_NEW_YORK)
    except (ValueError, OverflowError):
        raise fields.wrong(name, "a time such as 2025-06-30T13:30:00Z") from None
