"""What the tools of `polygon` say, made from the records alone: the same words whoever knew the facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from mcprl.servers.polygon.source import TickerDetails
from mcprl.servers.stock_answers import labelled, money, shortened, whole
from mcprl.world.facts import Article, Bar, Frequency, MarketStatus

__all__ = ["MAX_BARS_SHOWN", "bars", "details", "news", "previous_close", "status"]

MAX_BARS_SHOWN = 30
"""Bars in a text. The structured answer holds all."""


def bars(ticker: str, start: date, end: date, frequency: Frequency, found: Sequence[Bar]) -> str:
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
    return "\n".join([*lines, *(_bar(bar, frequency) for bar in shown)])


def previous_close(bar: Bar) -> str:
    lines = [
        f"**{bar.symbol} Previous Close:**",
        f"Date: {bar.start:%Y-%m-%d}",
        f"Open: {money(bar.open)}",
        f"High: {money(bar.high)}",
        f"Low: {money(bar.low)}",
        f"Close: {money(bar.close)}",
        f"Volume: {whole(bar.volume)}",
    ]
    return "\n".join(lines)


def details(found: TickerDetails) -> str:
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


def news(ticker: str, found: Sequence[Article]) -> str:
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


def status(found: MarketStatus) -> str:
    lines = [
        "**Market Status:**",
        f"Market: {found.session}",
        f"Server Time: {found.now.isoformat(timespec='seconds')}",
    ]
    if found.exchanges:
        lines += ["", "**Exchanges:**", *(f"{name}: {session}" for name, session in found.exchanges)]
    return "\n".join(lines)


def _bar(bar: Bar, frequency: Frequency) -> str:
    time = f"{bar.start:%Y-%m-%d}" if frequency is Frequency.DAILY else f"{bar.start:%Y-%m-%d %H:%M}"
    prices = f"O={money(bar.open)} H={money(bar.high)} L={money(bar.low)} C={money(bar.close)}"
    return f"{time}: {prices} V={whole(bar.volume)}"
