"""Stocks as the API of Financial Modeling Prep that it calls "stable" tells them.

What is asked about stands in the parameters, and an unknown symbol is an empty list. Status 404 thus says that the API
has no such path, and 402 that the key's plan leaves out this data. Some failures come with status 200 and an "Error
Message" instead of a list: a used-up limit, a key that is not known. None of these is a fault of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from mcp.server.mcpserver.exceptions import ToolError

from mcprl.concurrency import run_all
from mcprl.redact import SECRETS
from mcprl.servers.fmp.source import Profile
from mcprl.servers.json_fields import JsonFields, json_objects
from mcprl.servers.upstream import (
    UNSAID_WAIT_S,
    Upstream,
    UpstreamRefusal,
    base_url,
    required_key,
    upstream_fault,
)
from mcprl.world.facts import Article, Company, Period, Quote, Statement

__all__ = ["LiveFmp", "fmp_upstream"]

_NAME = "fmp"
_NOT_FOUND = 404
_NEW_YORK = ZoneInfo("America/New_York")
_PERIODS = {Period.ANNUAL: "annual", Period.QUARTERLY: "quarter"}


def fmp_upstream() -> Upstream:
    """The API at FMP_BASE_URL, or at its own address, with the key FMP_API_KEY."""
    key = required_key(_NAME, "FMP_API_KEY")
    return Upstream(_NAME, base_url("FMP_BASE_URL", "https://financialmodelingprep.com/stable"), params={"apikey": key})


class LiveFmp:
    """Asks the API."""

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

    async def gainers(self, limit: int) -> tuple[Quote, ...]:
        return tuple(map(_mover, (await self._list("/biggest-gainers"))[:limit]))

    async def losers(self, limit: int) -> tuple[Quote, ...]:
        return tuple(map(_mover, (await self._list("/biggest-losers"))[:limit]))

    async def search(self, query: str, limit: int) -> tuple[Company, ...]:
        """Those whose symbol is like the query, then those whose name is; no symbol twice."""
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
                raise upstream_fault(_NAME, f"knows no {path} (HTTP 404: {refusal.text})") from None
            raise ToolError(f"The request was refused: {refusal.text}") from None
        _check_is_no_error(found)
        return json_objects(_NAME, path.removeprefix("/"), found)


def _check_is_no_error(found: Any) -> None:
    if not isinstance(found, dict):
        return
    message = cast("dict[str, Any]", found).get("Error Message")
    if isinstance(message, str):
        is_busy = "limit reach" in message.lower()
        told = SECRETS.redact(message)[:300]  # in this order: half a key would not be recognised
        raise upstream_fault(_NAME, f"answered with an error: {told}", UNSAID_WAIT_S if is_busy else None)


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
    return Quote(
        symbol=fields.text("symbol"),
        name=fields.maybe_text("name") or "",
        price=price,
        previous_close=round(price - change, 6),  # not told, and the difference has the noise of binary fractions
        change=change,
        change_percent=fields.number("changesPercentage"),
    )


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
