"""Offline, every tool for market data says what the market holds, in text and structure, and no two contradict."""
# R14

import asyncio
import re
from dataclasses import fields
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from mcprl.servers import make_server
from mcprl_market.polygon import MAX_BARS_SHOWN
from mcprl_market.world import open_market
from mcprl_market.world.facts import Frequency, Period

SEEDS = (7, 11)
_FIGURE = r"\$?(-?[\d,]+(?:\.\d+)?)"


def call(name: str, seed: int, tool: str, **arguments):
    """Text and structured content of a call on a server of that world."""
    if (name, seed) not in _servers:
        _servers[name, seed] = make_server(name, world=seed)
    result = asyncio.run(_servers[name, seed].call_tool(tool, arguments))
    return result.content[0].text, result.structured_content


_servers: dict = {}


def figure(text: str, label: str) -> float:
    """The number after a label, as a reader would take it."""
    return float(re.search(rf"^{re.escape(label)}: {_FIGURE}", text, re.MULTILINE)[1].replace(",", ""))


def assert_states(structured: dict, record) -> None:
    """Every field of the structured content is that of the record, and none is left out."""
    assert set(structured) == {field.name for field in fields(record)}
    for name, value in structured.items():
        held = getattr(record, name)
        if isinstance(held, datetime):
            assert datetime.fromisoformat(value) == held
        elif isinstance(held, date):
            assert date.fromisoformat(value) == held
        elif isinstance(held, tuple):
            assert value == [list(item) if isinstance(item, tuple) else item for item in held]
        elif hasattr(held, "__dataclass_fields__"):
            assert_states(value, held)
        else:
            assert value == held


@st.composite
def stocks(draw):
    """A seed, and a symbol of its market in any case."""
    seed = draw(st.sampled_from(SEEDS))
    symbol = draw(st.sampled_from([company.symbol for company in open_market(seed).companies]))
    return seed, draw(st.sampled_from([symbol, symbol.lower(), f" {symbol} "]))


@given(stocks())
def test_a_quote_is_the_markets_and_the_narrower_tools_repeat_it(stock):
    seed, symbol = stock
    quote = open_market(seed).quote(symbol.strip())
    text, structured = call("fmp", seed, "fmp_get_quote", symbol=symbol)
    assert_states(structured, quote)
    assert text.startswith(f"**{quote.symbol} - {quote.name}**\n")
    assert figure(text, "Price") == quote.price
    assert figure(text, "Change") == quote.change
    assert f"({quote.change_percent:.2f}%)" in text
    assert figure(text, "Previous Close") == quote.previous_close
    assert figure(text, "Volume") == quote.volume
    assert figure(text, "Market Cap") == quote.market_cap
    _, change = call("fmp", seed, "fmp_get_change_percent", symbol=symbol)
    assert change == {"symbol": quote.symbol, "change": quote.change, "change_percent": quote.change_percent}
    _, close = call("fmp", seed, "fmp_get_previous_close", symbol=symbol)
    assert close == {"symbol": quote.symbol, "previous_close": quote.previous_close}


@given(stocks())
def test_both_servers_agree_on_name_market_cap_previous_close_and_news(stock):
    seed, symbol = stock
    quoted = call("fmp", seed, "fmp_get_quote", symbol=symbol)[1]
    profile = call("fmp", seed, "fmp_get_company_profile", symbol=symbol)[1]
    details = call("polygon", seed, "polygon_get_ticker_details", ticker=symbol)[1]
    day = call("polygon", seed, "polygon_get_previous_close", ticker=symbol)[1]
    assert profile["company"] == details["company"]
    assert quoted["name"] == profile["company"]["name"]
    assert quoted["market_cap"] == profile["market_cap"] == details["market_cap"]
    assert quoted["previous_close"] == day["close"]
    assert datetime.fromisoformat(day["start"]).date() < open_market(seed).today
    told = call("fmp", seed, "fmp_get_stock_news", tickers=symbol, limit=5)[1]["articles"]
    assert told == call("polygon", seed, "polygon_get_news", ticker=symbol, limit=5)[1]["articles"]


@given(stocks(), st.sampled_from(list(Period)), st.integers(1, 8))
def test_statements_are_the_markets_figure_by_figure(stock, period, limit):
    seed, symbol = stock
    held = open_market(seed).statements(symbol.strip(), period, limit)
    text, structured = call("fmp", seed, "fmp_get_income_statement", symbol=symbol, period=period, limit=limit)
    for told, record in zip(structured["statements"], held, strict=True):
        assert_states(told, record)
    blocks = text.split("\n---")[:-1]
    for block, record in zip(blocks, held, strict=True):
        assert f"Period: {record.label} (ended {record.end})" in block
        labels = {"Revenue": "revenue", "Gross Profit": "gross_profit", "Operating Income": "operating_income",
                  "Net Income": "net_income", "EPS": "eps"}  # fmt: skip
        assert {name: figure(block, label) for label, name in labels.items()} == {
            name: getattr(record, name) for name in labels.values()
        }


@given(stocks(), st.integers(0, 400), st.integers(0, 120))
def test_a_daily_series_is_the_markets_and_its_text_shows_the_last_bars(stock, ago, length):
    seed, symbol = stock
    market = open_market(seed)
    end = market.today - timedelta(days=ago)
    start = end - timedelta(days=length)
    held = market.bars(symbol.strip(), start, end)
    arguments = {"ticker": symbol, "start_date": str(start), "end_date": str(end)}
    if not held:
        with pytest.raises(ToolError, match="No price data was found"):
            call("polygon", seed, "polygon_get_aggs", **arguments)
        return
    text, structured = call("polygon", seed, "polygon_get_aggs", **arguments)
    for told, record in zip(structured["bars"], held, strict=True):
        assert_states(told, record)
    number = r"([\d.,]+)"
    shown = re.findall(rf"^(\S+): O=\${number} H=\${number} L=\${number} C=\${number} V={number}$", text, re.MULTILINE)
    assert [(day, *(float(part.replace(",", "")) for part in parts)) for day, *parts in shown] == [
        (str(bar.start.date()), bar.open, bar.high, bar.low, bar.close, bar.volume) for bar in held[-MAX_BARS_SHOWN:]
    ]
    assert figure(text, "Records") == len(held)
    assert figure(text, "High") == max(bar.high for bar in held)
    assert figure(text, "Low") == min(bar.low for bar in held)


@pytest.mark.parametrize("frequency", [Frequency.HOURLY, Frequency.MINUTE])
def test_a_series_of_shorter_bars_is_the_markets(frequency):
    market = open_market(7)
    symbol = market.companies[0].symbol
    day = market.previous_close(symbol).start.date()
    held = market.bars(symbol, day, day, frequency)
    arguments = {"ticker": symbol, "start_date": str(day), "end_date": str(day), "frequency": frequency}
    text, structured = call("polygon", 7, "polygon_get_aggs", **arguments)
    for told, record in zip(structured["bars"], held, strict=True):
        assert_states(told, record)
    assert f"{held[-1].start:%Y-%m-%d %H:%M}: O=" in text


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("kind", ["gainers", "losers"])
@pytest.mark.parametrize("seed", SEEDS)
def test_movers_are_the_markets_in_its_order(seed, kind, limit):
    held = getattr(open_market(seed), kind)(limit)
    text, structured = call("fmp", seed, f"fmp_get_market_{kind}", limit=limit)
    for told, record in zip(structured["quotes"], held, strict=True):
        assert_states(told, record)
    sign = "+" if kind == "gainers" else "-"
    shown = re.findall(rf"^(\w+): \$([\d.]+) \(\{sign}([\d.]+) / \{sign}([\d.]+)%\)$", text, re.MULTILINE)
    assert [(name, *map(float, rest)) for name, *rest in shown] == [
        (quote.symbol, quote.price, abs(quote.change), abs(quote.change_percent)) for quote in held
    ]


@given(stocks())
def test_a_company_is_found_by_its_name_and_its_symbol(stock):
    seed, symbol = stock
    company = open_market(seed).company(symbol.strip())
    for query in (company.name, company.symbol):
        text, structured = call("fmp", seed, "fmp_search_ticker", query=query)
        assert_states(structured["companies"][0], company)
        assert f"Symbol: {company.symbol}\nName: {company.name}\nExchange: {company.exchange}\n---" in text


@pytest.mark.parametrize("seed", SEEDS)
def test_news_of_all_stocks_and_the_status_are_the_markets(seed):
    market = open_market(seed)
    text, structured = call("fmp", seed, "fmp_get_stock_news", limit=5)
    for told, record in zip(structured["articles"], market.news(None, 5), strict=True):
        assert_states(told, record)
        assert f"Title: {record.title}\n" in text
    text, structured = call("polygon", seed, "polygon_get_market_status")
    assert_states(structured, market.status())
    assert f"Market: {market.status().session}\nServer Time: {market.now.isoformat()}" in text


@pytest.mark.parametrize(
    ("name", "tool", "argument"),
    [
        ("fmp", "fmp_get_quote", "symbol"),
        ("fmp", "fmp_get_company_profile", "symbol"),
        ("fmp", "fmp_get_income_statement", "symbol"),
        ("fmp", "fmp_get_change_percent", "symbol"),
        ("fmp", "fmp_get_previous_close", "symbol"),
        ("polygon", "polygon_get_ticker_details", "ticker"),
        ("polygon", "polygon_get_previous_close", "ticker"),
    ],
)
def test_an_unknown_symbol_is_a_sentence_that_names_it(name, tool, argument):
    with pytest.raises(ToolError, match=r"'ZZZZZ'.*\."):
        call(name, 7, tool, **{argument: "zzzzz"})


@pytest.mark.parametrize("name", ["fmp", "polygon"])
def test_a_server_of_a_world_names_it_in_its_version_and_reaches_nothing_outside(name):
    server = make_server(name, world=7)
    assert server.version == "1+market-7"
    tools = asyncio.run(server.list_tools())
    assert not any(tool.annotations.open_world_hint for tool in tools)
