"""Local stand-ins for Financial Modeling Prep and Polygon, with the calls of every tool and what each must say."""

from dataclasses import dataclass
from typing import Any

from local_upstream import LocalUpstream, Route

FMP_KEY = "Fm8Qx2Zt6Yw4Rb9Lk1Vc7Nd3Hs5Pj0Ga"
POLYGON_KEY = "pLy_7dK2mQ9xW4tB8vZ1nR6cJ3"

FMP_QUOTE = {
    "symbol": "VLKN", "name": "Valkenor Systems Inc.", "price": 213.88, "changePercentage": 0.05613772, "change": 0.12,
    "volume": 40268781, "dayLow": 213.405, "dayHigh": 215.24, "yearHigh": 260.1, "yearLow": 164.0,
    "marketCap": 3194468904000.0005, "priceAvg50": 210.7, "priceAvg200": 219.9, "exchange": "NASDAQ", "open": 214.7,
    "previousClose": 213.76, "timestamp": 1753718401,
}  # fmt: skip
_PROFILE = {
    "symbol": "VLKN", "price": 213.88, "marketCap": 3194468904000, "change": 0.12, "changePercentage": 0.05613772,
    "companyName": "Valkenor Systems Inc.", "currency": "USD", "exchangeFullName": "NASDAQ Global Select",
    "exchange": "NASDAQ", "industry": "Semiconductors", "sector": "Technology", "country": "US", "city": "Austin",
    "ceo": "Mira Osei", "website": "https://valkenor.test", "fullTimeEmployees": "12400",
    "description": "Designs\n chips. " * 40,
}  # fmt: skip
_STATEMENT = {
    "date": "2024-09-28", "symbol": "VLKN", "fiscalYear": "2024", "period": "FY", "revenue": 391035000000,
    "grossProfit": 180683000000, "operatingIncome": 123216000000, "netIncome": 93736000000, "eps": 6.11,
    "epsDiluted": 6.08,
}  # fmt: skip
_FMP_NEWS = {
    "symbol": "VLKN", "publishedDate": "2025-07-27 19:32:00", "publisher": "The News", "site": "news.test",
    "title": "Valkenor opens a plant", "text": "It makes chips.", "url": "https://news.test/plant", "image": None,
}  # fmt: skip


def _mover(symbol: str, price: float, change: float, percent: float) -> dict[str, Any]:
    return {"symbol": symbol, "name": f"{symbol} Corp.", "price": price, "change": change, "changesPercentage": percent}


def fmp_match(symbol: str, name: str) -> dict[str, str]:
    """What a search of FMP says of a stock."""
    exchange = {"exchangeFullName": "NASDAQ Global Select", "exchange": "NASDAQ"}
    return {"symbol": symbol, "name": name, "currency": "USD", **exchange}


def _for(parameter: str, value: str, known: list[Any]) -> Route:
    """What is known for one value of a parameter; for any other an empty list, which is how FMP says unknown."""
    return lambda request: known if request.params[parameter] == value else []


FMP_ROUTES = {
    "GET /quote": _for("symbol", "VLKN", [FMP_QUOTE]),
    "GET /profile": _for("symbol", "VLKN", [_PROFILE]),
    "GET /income-statement": _for("symbol", "VLKN", [
        _STATEMENT, {**_STATEMENT, "date": "2024-06-29", "period": "Q3", "eps": 1.4},
    ]),
    "GET /biggest-gainers": [_mover("UPPP", 5.9, 4.05, 218.91892), _mover("UPP", 0.0685, 0.0142, 26.15101)],
    "GET /biggest-losers": [_mover("DWN", 0.127, -0.0803, -38.73613)],
    "GET /search-symbol": [],
    "GET /search-name": _for("query", "valkenor & co", [fmp_match("VLKN", "Valkenor Systems Inc.")]),
    "GET /news/stock": [_FMP_NEWS, {**_FMP_NEWS, "title": "Older"}],
    "GET /news/stock-latest": [_FMP_NEWS],
}  # fmt: skip

_BAR = {"v": 75158277.0, "vw": 191.5, "o": 191.44, "c": 192.25, "h": 192.57, "l": 189.91, "n": 1000}
_DAY_MS = 24 * 3600 * 1000
_MAY_1 = 1746072000000  # 2025-05-01, midnight in New York
_AGGS = {"ticker": "VLKN", "status": "DELAYED", "resultsCount": 2, "adjusted": True}
_POLYGON_NEWS = {
    "id": "1", "publisher": {"name": "Newsroom", "homepage_url": "https://news.test"},
    "title": "Valkenor opens a plant", "author": "A. Writer", "published_utc": "2025-07-27T23:32:00Z", "article_url": "https://news.test/plant",
    "tickers": ["VLKN", "ORDA"], "description": "It makes chips.",
}  # fmt: skip
_DETAILS = {
    "ticker": "VLKN", "name": "Valkenor Systems Inc.", "market": "stocks", "locale": "us", "primary_exchange": "XNAS",
    "type": "CS", "active": True, "currency_name": "usd", "market_cap": 3194468904000.5, "total_employees": 12400,
    "description": "Designs chips.", "homepage_url": "https://valkenor.test", "sic_description": "SEMICONDUCTORS",
}  # fmt: skip
_STATUS = {
    "afterHours": False, "earlyHours": True, "market": "extended-hours", "serverTime": "2025-07-28T07:17:56-04:00",
    "currencies": {"crypto": "open", "fx": "open"}, "exchanges": {"nasdaq": "extended-hours", "nyse": "closed"},
}  # fmt: skip


def _bars(num: int) -> list[dict[str, Any]]:
    return [{**_BAR, "t": _MAY_1 + day * _DAY_MS, "h": 192.57 + day} for day in range(num)]


POLYGON_ROUTES = {
    "GET /v2/aggs/ticker/VLKN/range/1/day/2025-05-01/2025-05-02": {**_AGGS, "results": _bars(2)},
    "GET /v2/aggs/ticker/VLKN/range/1/hour/2025-05-01/2025-05-01": {**_AGGS, "results": _bars(1)},
    "GET /v2/aggs/ticker/LONG/range/1/day/2025-05-01/2025-06-09": {**_AGGS, "status": "OK", "results": _bars(40)},
    "GET /v2/aggs/ticker/PART/range/1/day/2025-05-01/2025-05-02": {
        **_AGGS, "results": _bars(1), "next_url": "https://other.test/more?cursor=x"
    },
    "GET /v2/aggs/ticker/NOPE/range/1/day/2025-05-01/2025-05-02": {"status": "OK", "resultsCount": 0},
    "GET /v2/aggs/ticker/VLKN/prev": {**_AGGS, "results": _bars(1)},
    "GET /v2/aggs/ticker/NOPE/prev": {"status": "OK", "resultsCount": 0},
    "GET /v2/reference/news": {"status": "OK", "results": [_POLYGON_NEWS, {**_POLYGON_NEWS, "title": "Older"}]},
    "GET /v3/reference/tickers/VLKN": {"status": "OK", "results": _DETAILS},
    "GET /v1/marketstatus/now": _STATUS,
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    """A call, the text it must give, and what upstream must have been asked."""

    tool: str
    arguments: dict[str, Any]
    text: str
    path: str
    params: dict[str, str]
    also: tuple[str, ...] = ()
    """Further paths that the same call asks with the same parameters."""


_DAILY = {"ticker": "vlkn", "start_date": "2025-05-01", "end_date": "2025-05-02"}
_AGG_PARAMS = {"adjusted": "true", "sort": "asc", "limit": "50000"}

FMP_CALLS = (
    Said("fmp_get_quote", {"symbol": " vlkn"},
         "**VLKN - Valkenor Systems Inc.**\nPrice: $213.88\nChange: $0.12 (0.0561%)\nPrevious Close: $213.76\n"
         "Open: $214.70\nDay Range: $213.405 - $215.24\nVolume: 40,268,781\nMarket Cap: $3,194,468,904,000",
         "/quote", {"symbol": "VLKN"}),
    Said("fmp_get_company_profile", {"symbol": "VLKN"},
         "**Valkenor Systems Inc. (VLKN)**\nIndustry: Semiconductors\nSector: Technology\nExchange: NASDAQ\n"
         "Country: US\nCity: Austin\nWebsite: https://valkenor.test\nCEO: Mira Osei\nEmployees: 12,400\n"
         "Market Cap: $3,194,468,904,000\nDescription: " + ("Designs chips. " * 20).strip() + "...",
         "/profile", {"symbol": "VLKN"}),
    Said("fmp_get_income_statement", {"symbol": "VLKN", "period": "quarterly"},
         "**Income Statement for VLKN**\n\nPeriod: FY2024 (ended 2024-09-28)\nRevenue: $391,035,000,000\n"
         "Gross Profit: $180,683,000,000\nOperating Income: $123,216,000,000\nNet Income: $93,736,000,000\n"
         "EPS: $6.11\n---\nPeriod: Q3 2024 (ended 2024-06-29)\nRevenue: $391,035,000,000\n"
         "Gross Profit: $180,683,000,000\nOperating Income: $123,216,000,000\nNet Income: $93,736,000,000\n"
         "EPS: $1.40\n---", "/income-statement", {"symbol": "VLKN", "period": "quarter", "limit": "2"}),
    Said("fmp_get_market_gainers", {},
         "**Top Market Gainers**\n\nUPPP: $5.90 (+4.05 / +218.9189%)\nUPP: $0.0685 (+0.0142 / +26.151%)",
         "/biggest-gainers", {}),
    Said("fmp_get_market_losers", {"limit": 1}, "**Top Market Losers**\n\nDWN: $0.127 (-0.0803 / -38.7361%)",
         "/biggest-losers", {}),
    Said("fmp_search_ticker", {"query": "valkenor & co", "limit": 3},
         "**Search Results for 'valkenor & co'**\n\nSymbol: VLKN\nName: Valkenor Systems Inc.\n"
         "Exchange: NASDAQ Global Select\n---", "/search-symbol", {"query": "valkenor & co", "limit": "3"},
         also=("/search-name",)),
    Said("fmp_get_stock_news", {"tickers": "vlkn, orda", "limit": 1},
         "**Stock News**\n\nTitle: Valkenor opens a plant\nText: It makes chips.\nURL: https://news.test/plant\n"
         "Published: 2025-07-27 19:32:00\nSite: news.test\n---", "/news/stock", {"symbols": "VLKN,ORDA", "limit": "1"}),
    Said("fmp_get_stock_news", {"limit": 1},
         "**Stock News**\n\nTitle: Valkenor opens a plant\nText: It makes chips.\nURL: https://news.test/plant\n"
         "Published: 2025-07-27 19:32:00\nSite: news.test\n---", "/news/stock-latest", {"page": "0", "limit": "1"}),
    Said("fmp_get_change_percent", {"symbol": "VLKN"}, "**VLKN Change**\nChange: 0.0561% ($0.12)", "/quote",
         {"symbol": "VLKN"}),
    Said("fmp_get_previous_close", {"symbol": "VLKN"}, "**VLKN Previous Close**\nPrevious Close: $213.76",
         "/quote", {"symbol": "VLKN"}),
)  # fmt: skip

POLYGON_CALLS = (
    Said("polygon_get_aggs", _DAILY,
         "**VLKN Price Data (daily):**\nPeriod: 2025-05-01 to 2025-05-02\nRecords: 2\n\n**Summary:**\nHigh: $193.57\n"
         "Low: $189.91\nAvg Volume: 75,158,277\n\n**Data:**\n"
         "2025-05-01: O=$191.44 H=$192.57 L=$189.91 C=$192.25 V=75,158,277\n"
         "2025-05-02: O=$191.44 H=$193.57 L=$189.91 C=$192.25 V=75,158,277",
         "/v2/aggs/ticker/VLKN/range/1/day/2025-05-01/2025-05-02", _AGG_PARAMS),
    Said("polygon_get_aggs", {**_DAILY, "end_date": "2025-05-01", "frequency": "hourly"},
         "**VLKN Price Data (hourly):**\nPeriod: 2025-05-01 to 2025-05-01\nRecords: 1\n\n**Summary:**\nHigh: $192.57\n"
         "Low: $189.91\nAvg Volume: 75,158,277\n\n**Data:**\n"
         "2025-05-01 00:00: O=$191.44 H=$192.57 L=$189.91 C=$192.25 V=75,158,277",
         "/v2/aggs/ticker/VLKN/range/1/hour/2025-05-01/2025-05-01", _AGG_PARAMS),
    Said("polygon_get_news", {"ticker": "VLKN", "limit": 1},
         "**Polygon News for VLKN:**\n\n**2025-07-27:**\nTitle: Valkenor opens a plant\nDescription: It makes chips.\n"
         "Publisher: Newsroom\nTickers: VLKN, ORDA\nURL: https://news.test/plant\n---", "/v2/reference/news",
         {"ticker": "VLKN", "order": "desc", "sort": "published_utc", "limit": "1"}),
    Said("polygon_get_ticker_details", {"ticker": "VLKN"},
         "**VLKN Ticker Details:**\nName: Valkenor Systems Inc.\nMarket: stocks\nPrimary Exchange: XNAS\nType: CS\n"
         "Active: True\nCurrency: usd\nIndustry: SEMICONDUCTORS\nMarket Cap: $3,194,468,904,000\nEmployees: 12,400\n"
         "Description: Designs chips.", "/v3/reference/tickers/VLKN", {}),
    Said("polygon_get_previous_close", {"ticker": "VLKN"},
         "**VLKN Previous Close:**\nDate: 2025-05-01\nOpen: $191.44\nHigh: $192.57\nLow: $189.91\nClose: $192.25\n"
         "Volume: 75,158,277", "/v2/aggs/ticker/VLKN/prev", {"adjusted": "true"}),
    Said("polygon_get_market_status", {},
         "**Market Status:**\nMarket: pre-market\nServer Time: 2025-07-28T07:17:56-04:00\n\n**Exchanges:**\n"
         "nasdaq: extended-hours\nnyse: closed", "/v1/marketstatus/now", {}),
)  # fmt: skip


@dataclass(frozen=True)
class Live:
    """A live server: its key and how it is sent, its upstream, and the calls of its tools."""

    name: str
    key: str
    key_parameter: str
    routes: dict[str, Any]
    disguise: Any
    calls: tuple[Said, ...]
    refused: tuple[tuple[str, dict[str, Any], str], ...]
    """Calls that are the caller's mistake, and the error of each."""

    def environment(self, upstream: LocalUpstream) -> dict[str, str]:
        variable = self.name.upper()
        return {f"{variable}_API_KEY": self.key, f"{variable}_BASE_URL": upstream.url}

    def upstream(self) -> LocalUpstream:
        return LocalUpstream(self.routes, disguise=self.disguise)


FMP = Live(
    "fmp", FMP_KEY, "apikey", FMP_ROUTES,
    {"Error Message": f"Invalid API KEY {FMP_KEY}. Please retry."}, FMP_CALLS,
    (
        ("fmp_get_quote", {"symbol": "NOPE"}, "There is no stock with the symbol 'NOPE'"),
        ("fmp_get_company_profile", {"symbol": "NOPE"}, "There is no stock with the symbol 'NOPE'"),
        ("fmp_get_previous_close", {"symbol": "NOPE"}, "There is no stock with the symbol 'NOPE'"),
        ("fmp_get_income_statement", {"symbol": "NOPE"}, "No annual income statement was found for 'NOPE'"),
        ("fmp_get_quote", {"symbol": "VLKN,ORDA"}, "'VLKN,ORDA' is not a ticker symbol"),
        ("fmp_get_change_percent", {"symbol": "../profile/VLKN"}, "'../profile/VLKN' is not a ticker symbol"),
        ("fmp_get_stock_news", {"tickers": "VLKN, all of them"}, "is not a ticker symbol"),
        ("fmp_search_ticker", {"query": "  "}, "Search for a company's name or symbol"),
        ("fmp_get_market_gainers", {"limit": 0}, "limit"),
        ("fmp_get_income_statement", {"symbol": "VLKN", "period": "monthly"}, "period"),
    ),
)  # fmt: skip
POLYGON = Live(
    "polygon", POLYGON_KEY, "apiKey", POLYGON_ROUTES,
    {"status": "NOT_AUTHORIZED", "message": f"Key {POLYGON_KEY} is not entitled to this data."}, POLYGON_CALLS,
    (
        ("polygon_get_ticker_details", {"ticker": "GONE"}, "There is no stock with the symbol 'GONE'"),  # 404
        ("polygon_get_previous_close", {"ticker": "NOPE"}, "There is no stock with the symbol 'NOPE'"),
        ("polygon_get_aggs", {**_DAILY, "ticker": "NOPE"}, "No price data was found for NOPE from 2025-05-01 to"),
        ("polygon_get_aggs", {**_DAILY, "start_date": "05/01/2025"}, "start_date '05/01/2025' is not a date"),
        ("polygon_get_aggs", {**_DAILY, "end_date": "2025-02-30"}, "end_date '2025-02-30' is not a date"),
        ("polygon_get_aggs", {**_DAILY, "end_date": "2025-04-01"}, "end_date 2025-04-01 is before start_date"),
        ("polygon_get_aggs", {**_DAILY, "end_date": "2025-06-01", "frequency": "minute"}, "32 days are too many"),
        ("polygon_get_aggs", {**_DAILY, "frequency": "weekly"}, "frequency"),
        ("polygon_get_news", {"ticker": "VLKN ORDA"}, "'VLKN ORDA' is not a ticker symbol"),
    ),
)  # fmt: skip
