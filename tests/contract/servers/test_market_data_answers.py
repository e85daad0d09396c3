"""What the live servers of market data make of answers that look well: structured output, odd values, hidden errors."""
# R14

import jsonschema
import pytest
from local_upstream import Status
from market_upstreams import FMP, FMP_QUOTE, POLYGON, Live, fmp_match
from mcp import Client, MCPError

from mcprl.protocol import RETRY_AFTER_S
from mcprl.servers import make_server
from mcprl_market.polygon import MAX_BARS_SHOWN
from mcprl_market.upstream import UNSAID_WAIT_S, Upstream


@pytest.fixture(params=[FMP, POLYGON], ids=lambda live: live.name)
def live(request) -> Live:
    return request.param


@pytest.fixture
def upstream(live: Live, monkeypatch):
    with live.upstream() as served:
        for variable, value in live.environment(served).items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setitem(Upstream.__init__.__kwdefaults__, "deadline_s", 60.0)  # however busy the machine
        yield served


def only_of(live: Live):
    return pytest.mark.parametrize("live", [live], ids=[live.name], indirect=True)


async def asked(live: Live, tool: str, arguments: dict):
    async with Client(make_server(live.name)) as client:
        return await client.call_tool(tool, arguments)


async def failed(live: Live, tool: str, arguments: dict) -> MCPError:
    async with Client(make_server(live.name)) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(tool, arguments)
    assert live.key not in caught.value.message
    return caught.value


def labels(text: str) -> list[str]:
    """What the lines after the heading are about."""
    return [line.split(":")[0] for line in text.splitlines()[1:]]


@pytest.mark.usefixtures("upstream")
async def test_tools_are_described_briefly_with_schemas_both_ways_and_marked_as_safe_to_repeat(live):
    async with Client(make_server(live.name)) as client:
        for tool in (await client.list_tools()).tools:
            assert len(tool.description) <= 100
            assert tool.description.count(".") == 1
            assert all(len(field["description"]) <= 50 for field in tool.input_schema["properties"].values())
            assert tool.output_schema["type"] == "object"
            hints = tool.annotations
            assert (hints.read_only_hint, hints.idempotent_hint, hints.open_world_hint) == (True, True, True)


@pytest.mark.usefixtures("upstream")
async def test_structured_output_fits_the_schema_that_is_published(live):
    async with Client(make_server(live.name)) as client:
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        for said in live.calls:
            result = await client.call_tool(said.tool, said.arguments)
            jsonschema.validate(result.structured_content, schemas[said.tool])


@only_of(FMP)
@pytest.mark.usefixtures("upstream")
async def test_structured_figures_are_those_of_upstream_not_rounded_as_in_the_text(live):
    quote = (await asked(live, "fmp_get_quote", {"symbol": "VLKN"})).structured_content
    assert quote["change_percent"] == 0.05613772
    assert quote["day_low"] == 213.405
    assert quote["market_cap"] == 3194468904000
    movers = (await asked(live, "fmp_get_market_gainers", {"limit": 2})).structured_content["quotes"]
    assert [mover["previous_close"] for mover in movers] == [1.85, 0.0543]
    assert [mover["volume"] for mover in movers] == [None, None]


@only_of(FMP)
async def test_a_stock_without_some_figures_is_told_without_their_lines(live, upstream):
    unknown = dict.fromkeys(("volume", "dayLow", "marketCap"))
    upstream.routes["GET /quote"] = [{**FMP_QUOTE, **unknown}]
    text = (await asked(live, "fmp_get_quote", {"symbol": "VLKN"})).content[0].text
    assert labels(text) == ["Price", "Change", "Previous Close", "Open"]


@only_of(FMP)
@pytest.mark.usefixtures("upstream")
async def test_a_live_quote_has_the_lines_of_an_offline_one_but_the_p_e_that_upstream_does_not_tell(live):
    found = await asked(live, "fmp_get_quote", {"symbol": "VLKN"})
    assert found.structured_content["pe"] is None
    async with Client(make_server("fmp", world=7)) as client:
        movers = (await client.call_tool("fmp_get_market_gainers", {"limit": 100})).structured_content["quotes"]
        profitable = next(mover["symbol"] for mover in movers if mover["pe"] is not None)
        offline = await client.call_tool("fmp_get_quote", {"symbol": profitable})
    assert labels(offline.content[0].text) == [*labels(found.content[0].text), "P/E Ratio"]


@only_of(FMP)
async def test_a_used_up_limit_inside_a_success_is_a_request_to_wait(live, upstream):
    upstream.routes["GET /quote"] = {"Error Message": "Limit Reach . Please upgrade your plan."}
    error = await failed(live, "fmp_get_quote", {"symbol": "VLKN"})
    assert "Limit Reach" in error.message
    assert error.data == {RETRY_AFTER_S: UNSAID_WAIT_S}


@only_of(FMP)
async def test_a_long_error_is_cut_where_no_part_of_the_key_is_left(live, upstream):
    upstream.routes["GET /quote"] = {"Error Message": "?" * 290 + live.key}
    assert live.key[:8] not in (await failed(live, "fmp_get_quote", {"symbol": "VLKN"})).message


@only_of(FMP)
@pytest.mark.parametrize(
    ("path", "answer", "tool", "place"),
    [
        ("/quote", [{"symbol": "VLKN", "price": "213"}], "fmp_get_quote", "quote[0].price should be a number"),
        ("/quote", [{"symbol": "VLKN", "price": True}], "fmp_get_quote", "quote[0].price should be a number"),
        ("/quote", {"quote": []}, "fmp_get_quote", "quote should be a list"),
        ("/quote", [7], "fmp_get_quote", "quote[0] should be an object"),
        ("/income-statement", [{"fiscalYear": "2024", "period": "FY", "date": "soon"}],
         "fmp_get_income_statement", "income-statement[0].date should be a date"),
        ("/quote", [{"symbol": "VLKN", "price": 10**400}], "fmp_get_quote", "price should be a number"),
    ],
)  # fmt: skip
async def test_a_field_of_another_kind_is_named(live, upstream, path, answer, tool, place):
    upstream.routes[f"GET {path}"] = answer
    assert place in (await failed(live, tool, {"symbol": "VLKN"})).message


@only_of(FMP)
async def test_news_or_matches_that_do_not_exist_are_no_mistake(live, upstream):
    upstream.routes["GET /news/stock"] = []
    none = await asked(live, "fmp_get_stock_news", {"tickers": "VLKN,"})
    assert (none.is_error, none.content[0].text) == (False, "No news was found for VLKN.")
    nobody = await asked(live, "fmp_search_ticker", {"query": "nothing"})
    assert not nobody.is_error
    assert nobody.structured_content == {"query": "nothing", "companies": []}


@only_of(FMP)
@pytest.mark.parametrize(("limit", "found"), [(1, "AB"), (3, "AB XAB OTH"), (10, "AB XAB OTH ABC")])
async def test_a_search_finds_symbols_first_and_then_names_and_no_stock_twice(live, upstream, limit, found):
    upstream.routes["GET /search-symbol"] = [fmp_match("AB", "Alpha Inc."), fmp_match("XAB", "Xenon Inc.")]
    upstream.routes["GET /search-name"] = [
        fmp_match("XAB", "Xenon"), fmp_match("OTH", "Abacus Inc."), fmp_match("AB", "Alpha"), fmp_match("ABC", "Cabs"),
    ]  # fmt: skip
    seen = await asked(live, "fmp_search_ticker", {"query": "ab", "limit": limit})
    companies = seen.structured_content["companies"]
    assert [company["symbol"] for company in companies] == found.split()
    assert companies[0]["name"] == "Alpha Inc."


@only_of(FMP)
@pytest.mark.parametrize("path", ["/search-symbol", "/search-name"])
async def test_half_a_search_is_never_taken_for_the_whole(live, upstream, path):
    upstream.routes[f"GET {path}"] = Status(500, {})
    assert "HTTP 500" in (await failed(live, "fmp_search_ticker", {"query": "valkenor & co"})).message


@only_of(FMP)
@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "rejected the key, or the key does not give access to this data (HTTP 401: "),
        (402, "rejected the key, or the key does not give access to this data (HTTP 402: "),
        (403, "rejected the key, or the key does not give access to this data (HTTP 403: "),
        (404, "does not have /quote (HTTP 404: "),
    ],
)
async def test_what_the_plan_or_the_api_does_not_have_is_infrastructure_and_named(live, upstream, status, told):
    upstream.routes["GET /quote"] = Status(status, "Not under your current subscription")
    error = await failed(live, "fmp_get_quote", {"symbol": "VLKN"})
    assert f'{told}"Not under your current subscription")' in error.message
    assert error.data is None


@only_of(POLYGON)
@pytest.mark.usefixtures("upstream")
async def test_a_long_series_is_cut_in_the_text_which_says_so_and_whole_in_the_structured_output(live):
    arguments = {"ticker": "LONG", "start_date": "2025-05-01", "end_date": "2025-06-09"}
    result = await asked(live, "polygon_get_aggs", arguments)
    lines = result.content[0].text.splitlines()
    assert "Records: 40" in lines
    assert f"**Recent Data (the last {MAX_BARS_SHOWN} of 40 records):**" in lines
    assert len([line for line in lines if " O=" in line]) == MAX_BARS_SHOWN
    bars = result.structured_content["bars"]
    assert len(bars) == 40
    assert lines[-1].startswith(bars[-1]["start"][:10])
    assert bars[0]["start"] == "2025-05-01T00:00:00-04:00"


@only_of(POLYGON)
@pytest.mark.usefixtures("upstream")
async def test_a_part_of_a_series_is_never_taken_for_the_whole(live):
    arguments = {"ticker": "PART", "start_date": "2025-05-01", "end_date": "2025-05-02"}
    assert "only a part of the bars" in (await failed(live, "polygon_get_aggs", arguments)).message


@only_of(POLYGON)
@pytest.mark.parametrize(
    ("answer", "told", "wait_s"),
    [
        ({"status": "ERROR", "error": "You've exceeded the maximum requests per minute."}, "ERROR", UNSAID_WAIT_S),
        ({"status": "ERROR", "error": "Unknown API Key"}, "Unknown API Key", None),
        ({"status": "NOT_AUTHORIZED", "message": "Upgrade your plan"}, "NOT_AUTHORIZED: Upgrade", None),
        ({"status": "STRANGE"}, "status STRANGE", None),
        ({"status": "OK", "results": [{"t": 1e300, "o": 1, "h": 1, "l": 1, "c": 1, "v": 1}]}, "results[0].t", None),
        (Status(403, {"status": "NOT_AUTHORIZED"}), "rejected the key", None),
    ],
)
async def test_an_error_inside_a_success_is_infrastructure(live, upstream, answer, told, wait_s):
    upstream.routes["GET /v2/aggs/ticker/VLKN/prev"] = answer
    error = await failed(live, "polygon_get_previous_close", {"ticker": "VLKN"})
    assert told in error.message
    assert error.data == (None if wait_s is None else {RETRY_AFTER_S: wait_s})


@only_of(POLYGON)
async def test_not_found_inside_a_success_is_the_callers_mistake(live, upstream):
    upstream.routes["GET /v3/reference/tickers/VLKN"] = {"status": "NOT_FOUND"}
    assert (await asked(live, "polygon_get_ticker_details", {"ticker": "VLKN"})).is_error


@only_of(POLYGON)
@pytest.mark.parametrize(
    ("told", "session"),
    [
        ({"market": "open"}, "open"),
        ({"market": "closed"}, "closed"),
        ({"market": "extended-hours", "earlyHours": True}, "pre-market"),
        ({"market": "extended-hours", "earlyHours": False}, "after-hours"),
    ],
)
async def test_the_session_of_the_market_has_one_of_four_names(live, upstream, told, session):
    path = "GET /v1/marketstatus/now"
    upstream.routes[path] = {**POLYGON.routes[path], **told}
    assert (await asked(live, "polygon_get_market_status", {})).structured_content["session"] == session


@only_of(POLYGON)
async def test_a_time_without_a_zone_is_not_guessed(live, upstream):
    path = "GET /v1/marketstatus/now"
    upstream.routes[path] = {**POLYGON.routes[path], "serverTime": "2025-07-28T07:17:56"}
    assert "serverTime should be a time" in (await failed(live, "polygon_get_market_status", {})).message
