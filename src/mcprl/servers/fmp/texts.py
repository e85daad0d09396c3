"""What the tools of `fmp` say, made from the records alone: the same words whoever knew the facts."""

from __future__ import annotations

from collections.abc import Sequence

from mcprl.servers.fmp.source import Profile
from mcprl.servers.stock_answers import labelled, money, percent, shortened, whole
from mcprl.world.facts import Article, Company, Quote, Statement

__all__ = ["change", "matches", "movers", "news", "previous_close", "profile", "quote", "statements"]


def quote(found: Quote) -> str:
    lines = [f"**{found.symbol} - {found.name}**" if found.name else f"**{found.symbol}**"]
    lines += [f"Price: {money(found.price)}", f"Change: {money(found.change)} ({percent(found.change_percent)})"]
    lines.append(f"Previous Close: {money(found.previous_close)}")
    if found.open is not None:
        lines.append(f"Open: {money(found.open)}")
    if found.day_low is not None and found.day_high is not None:
        lines.append(f"Day Range: {money(found.day_low)} - {money(found.day_high)}")
    if found.volume is not None:
        lines.append(f"Volume: {whole(found.volume)}")
    if found.market_cap is not None:
        lines.append(f"Market Cap: ${whole(found.market_cap)}")
    if found.pe is not None:
        lines.append(f"P/E Ratio: {found.pe:.2f}")
    return "\n".join(lines)


def profile(found: Profile) -> str:
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


def statements(symbol: str, found: Sequence[Statement]) -> str:
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


def movers(title: str, found: Sequence[Quote]) -> str:
    lines = [f"{stock.symbol}: {money(stock.price)} ({_signed_change(stock)})" for stock in found]
    return "\n".join([f"**{title}**\n", *(lines or ["None today."])])


def matches(query: str, found: Sequence[Company]) -> str:
    if not found:
        return f"No company was found for {query!r}. Try a shorter or another name."
    parts = [f"**Search Results for {query!r}**\n"]
    for company in found:
        parts += [f"Symbol: {company.symbol}", f"Name: {company.name}", f"Exchange: {company.exchange}", "---"]
    return "\n".join(parts)


def news(symbols: Sequence[str], found: Sequence[Article]) -> str:
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


def change(found: Quote) -> str:
    return f"**{found.symbol} Change**\nChange: {percent(found.change_percent)} ({money(found.change)})"


def previous_close(found: Quote) -> str:
    return f"**{found.symbol} Previous Close**\nPrevious Close: {money(found.previous_close)}"


def _signed_change(stock: Quote) -> str:
    sign = "+" if stock.change >= 0 else ""
    return f"{sign}{money(stock.change).removeprefix('$')} / {sign}{percent(stock.change_percent)}"
