"""Importing recorded conversations: which calls become recordings, and under which name."""
# R17, R31

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mcprl.errors import BadToolSchemaError
from mcprl.secrets import SECRETS
from mcprl.tools.cassette import Cassette
from mcprl.tools.catalog import ToolDefinition
from mcprl_synthesis.importing import (
    ImportRules,
    Verdict,
    import_recordings,
    reads_by_name,
    tells_of_an_error,
)
from mcprl_synthesis.recordings import ListedTool, Place, RecordedCall, Recordings, read_recordings

DATA = Path(__file__).parents[4] / "shared" / "data"
PLACE = Place(file="log.json", row=1, message=1)
TICKERS = {"ticker": "symbol", "symbol": "ticker"}


def call(tool: str, text: str = "fine", *, failed: bool = False, **arguments) -> RecordedCall:
    return RecordedCall(tool=tool, arguments=arguments, text=text, place=PLACE, failed=failed)


def listed(name: str, *required: str, read_only: bool | None = None, **schema) -> dict[str, ListedTool]:
    properties = {argument: {"type": "string"} for argument in required}
    parameters = {"type": "object", "properties": properties, "required": list(required), **schema}
    definition = ToolDefinition(name=name, description="D.", parameters=parameters)
    return {name: ListedTool(definition=definition, read_only=read_only)}


@pytest.fixture
def cassette(tmp_path):
    with Cassette.open(tmp_path / "calls.sqlite", writable=True) as opened:
        yield opened


@pytest.fixture
def run(cassette):
    """Imports calls; returns the verdict on each."""

    def go(*calls: RecordedCall, tools: dict[str, ListedTool] | None = None, **rules):
        found = import_recordings(Recordings(calls=list(calls)), cassette, ImportRules(**rules), tools or {})
        return [each.verdict.value for each in found]

    return go


def kept(cassette) -> list[tuple]:
    return [(r.server, r.tool, dict(r.arguments), r.text) for r in cassette.recordings()]


READS = """fmp_get_quote polygon_get_aggs tavily_qna_search list_slack_channels get_slack_channel_history listFiles
    HTTPFetch get_post list_open_orders search read-file convert_time find_person"""
WRITES = """send_slack_message execute_python create_data_pipeline store_execution_result process_mcp_data updateList
    delete_search_index search_and_replace getAndPost run_query todo_list_add post_search set_view write_query
    get_or_create frobnicate weather 42"""


@pytest.mark.parametrize("name", READS.split())
def test_a_name_with_a_verb_that_reads_is_a_read(name):
    assert reads_by_name(name)


@pytest.mark.parametrize("name", WRITES.split())
def test_a_name_that_may_mean_a_change_is_a_write(name):
    assert not reads_by_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "❌ Slack API error: channel_not_found",
        "Error executing tool fmp_get_quote: 'symbol'",
        "Error getting ticker details: 404 Client Error: Not Found for url: https://a/b?apikey=REDACTED",
        "'NoneType' object is not iterable",
        "ValueError: no such thing",
        "Traceback (most recent call last):\n  File",
        '{"error": "rate limit reached"}',
        '{ "errors" : ["x"]}',
        '{"isError":true}',
        '{"status": "error", "message": "x"}',
        '{"success": false}',
        "429 Too Many Requests",
        "Rate limit exceeded",
        "API error 500",
        "502 Server Error: Bad Gateway",
        "Failed to fetch",
        "  error: x",
    ],
)
def test_a_text_that_tells_of_an_error_is_one(text):
    assert tells_of_an_error(call("t", text))


@pytest.mark.parametrize(
    "text",
    [
        "**AAPL - Apple Inc.**\nPrice: $213.88",
        "No price data found for AIFER",
        "How to read an Error message",
        '{"error": null, "data": 1}',
        '{"error" :  "", "data": 1}',
        '{"errors": [ ], "data": 1}',
        '{"success": true}',
        "Failed startups of the decade",
        "Forbidden City",
        "4290 shares",
        "",
    ],
)
def test_an_answer_is_no_error_because_it_mentions_one(text):
    assert not tells_of_an_error(call("t", text))


def test_reads_that_worked_are_recorded_and_writes_and_errors_are_not(run, cassette):
    verdicts = run(
        call("get_quote", "1", symbol="A"),
        call("get_quote", "Error executing tool", symbol="B"),
        call("get_quote", "gone", symbol="C", failed=True),
        call("send_message", "sent", to="hi"),
        call("send_message", "Error", to="ho"),
    )
    assert kept(cassette) == [("recorded", "get_quote", {"symbol": "A"}, "1")]
    assert verdicts == ["replayable", "error", "error", "write", "write"]


def test_the_definition_overrules_the_name(run, cassette):
    tools = {**listed("get_b", read_only=False), **listed("put_d", read_only=True)}
    verdicts = run(*map(call, ("frob", "get_a", "get_b", "put_d")), tools=tools)
    assert verdicts == ["write", "replayable", "write", "replayable"]
    (_, (_, definitions)), *_ = cassette.tools().items()
    assert {tool.name for tool in definitions if tool.read_only} == {"get_a", "put_d"}


def test_tools_go_to_the_first_server_that_matches_and_others_are_left_out(run, cassette):
    servers = (("fmp", "fmp_*"), ("rest", "get_*"), ("late", "fmp_get_x"))
    verdicts = run(call("fmp_get_x"), call("get_y"), call("find_z"), servers=servers)
    assert [(server, tool) for server, tool, *_ in kept(cassette)] == [("fmp", "fmp_get_x"), ("rest", "get_y")]
    assert verdicts == ["replayable", "replayable", "unknown"]
    assert list(cassette.tools()) == ["fmp", "rest"]


def test_an_argument_is_recorded_under_the_name_that_the_tool_knows(run, cassette):
    tools = {**listed("get_quote", "symbol"), **listed("get_details", "ticker")}
    calls = [call("get_quote", ticker="A"), call("get_details", symbol="B"), call("get_details", ticker="C")]
    run(*calls, tools=tools, aliases=TICKERS)
    assert [arguments for _, _, arguments, _ in kept(cassette)] == [{"ticker": "B"}, {"ticker": "C"}, {"symbol": "A"}]


def test_an_inferred_definition_follows_the_calls_that_worked(run, cassette):
    failed = call("get_quote", "Error executing tool get_quote: 'symbol'", ticker="A")
    run(failed, failed, call("get_quote", symbol="B"), aliases=TICKERS)
    (definition,) = cassette.tools()["recorded"][1]
    assert definition.parameters["required"] == ["symbol"]


def test_a_call_that_does_not_fit_the_definition_is_left_out(run, cassette):
    calls = call("get_quote", symbol=3), call("get_quote", symbol="A")
    assert run(*calls, tools=listed("get_quote", "symbol")) == ["unfit", "replayable"]
    assert [arguments for _, _, arguments, _ in kept(cassette)] == [{"symbol": "A"}]


def test_a_definition_that_is_no_schema_stops_the_import(run):
    with pytest.raises(BadToolSchemaError):
        run(call("get_quote"), tools=listed("get_quote", type="nonsense"))


def test_of_differing_answers_the_last_of_the_logs_is_found(run, cassette):
    run(*(call("get_quote", text, symbol="A") for text in ("1", "2", "3", "1")), call("get_quote", "9", symbol="B"))
    assert cassette.find("recorded", "7.0", "get_quote", {"symbol": "A"}).text == "1"
    assert [text for _, _, arguments, text in kept(cassette) if arguments == {"symbol": "A"}] == ["2", "3", "1"]


def test_a_secret_in_a_log_is_struck_out(run, cassette):
    key = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    url = f"https://api.example.com/quote?apikey={key}"
    run(call("get_page", f"See {url}", url=url), call("get_page", "clean", url="https://example.com"))
    assert key not in json.dumps(kept(cassette))
    assert len(kept(cassette)) == 2


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded conversations are not beside the project")
def test_every_importable_call_of_the_real_logs_is_found_again(cassette):
    recordings = read_recordings(sorted(DATA.glob("*.json")))
    servers = tuple((name, f"{name}_*") for name in ("fmp", "polygon", "tavily"))
    rules = ImportRules(servers=(*servers, ("slack", "*_slack_*"), ("python", "*")), aliases=TICKERS)
    calls = import_recordings(recordings, cassette, rules, {})
    replayable = [each for each in calls if each.verdict is Verdict.REPLAYABLE]
    for each in replayable:
        assert cassette.find(each.tool.server, each.tool.version, each.call.tool, each.arguments) is not None
    # Counted apart from our code: the reads whose text is neither empty nor begins like an error.
    wrong = re.compile(r"\s*(❌|Error|'NoneType')")
    reads = [c for c in recordings.calls if re.search("get_|search|list_", c.tool)]
    worked = [c for c in reads if not c.failed and not wrong.match(c.text)]
    unfit = sum(each.verdict is Verdict.UNFIT for each in calls)
    assert len(replayable) == len(worked) - unfit == 889
    assert sum(each.verdict is Verdict.WRITE for each in calls) == len(recordings.calls) - len(reads)
    assert sum(each.arguments.keys() != each.call.arguments.keys() for each in calls) == sum(
        ("ticker" in c.arguments and c.tool == "fmp_get_quote")
        or ("symbol" in c.arguments and c.tool.startswith("polygon"))
        for c in recordings.calls
    )
    assert all(SECRETS.redact(r.text) == r.text for r in cassette.recordings())
