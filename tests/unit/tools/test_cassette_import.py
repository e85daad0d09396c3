"""Importing recorded conversations: which calls become recordings, under which name, and what the report says."""
# R17, R31

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mcprl.errors import BadToolSchemaError, BadValueError
from mcprl.secrets import SECRETS
from mcprl.tools.cassettes.cassette import ANY_VERSION, Cassette
from mcprl.tools.cassettes.importing import (
    ImportRules,
    error_rules,
    find_faults,
    import_recordings,
    reads_by_name,
    replay,
    tells_of_an_error,
)
from mcprl.tools.cassettes.recordings import ListedTool, Place, RecordedCall, Recordings, read_recordings
from mcprl.tools.catalog import ToolDefinition

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
    """Imports calls; gives back the counts of each tool, and the report."""

    def go(*calls: RecordedCall, tools: dict[str, ListedTool] | None = None, **rules):
        report = import_recordings(Recordings(calls=list(calls)), cassette, ImportRules(**rules), tools or {})
        return {count.tool: count for count in report.tools}, report

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
    assert tells_of_an_error(call("t", text), error_rules())


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
    assert not tells_of_an_error(call("t", text), error_rules())


def test_a_rule_of_the_user_is_searched_for_and_a_wrong_one_is_refused():
    assert tells_of_an_error(call("t", "Sorry, No DATA today"), error_rules(["(?i)no data"]))
    with pytest.raises(BadValueError, match="is not a regular expression"):
        error_rules(["("])


def test_reads_that_worked_are_recorded_and_writes_and_errors_are_not(run, cassette):
    counts, _ = run(
        call("get_quote", "1", symbol="A"),
        call("get_quote", "Error executing tool", symbol="B"),
        call("get_quote", "gone", symbol="C", failed=True),
        call("send_message", "sent", to="hi"),
        call("send_message", "Error", to="ho"),
    )
    assert kept(cassette) == [("recorded", "get_quote", {"symbol": "A"}, "1")]
    quote, message = counts["get_quote"], counts["send_message"]
    assert (quote.seen, quote.recorded, quote.distinct, quote.errors, quote.writes) == (3, 1, 1, 2, 0)
    assert (message.seen, message.recorded, message.writes, message.errors, message.is_write) == (2, 0, 2, 0, True)


def test_the_user_and_the_definition_overrule_the_name_in_this_order(run, cassette):
    names = ("frob", "get_a", "get_b", "get_c", "put_d")
    tools = {
        **listed("get_b", read_only=False),
        **listed("get_c", read_only=False),
        **listed("put_d", read_only=True),
    }
    counts, _ = run(*map(call, names), tools=tools, reads=("frob", "get_a", "get_c"), writes=("get_a",))
    assert {name for name, count in counts.items() if not count.is_write} == {"frob", "get_c", "put_d"}
    (_, (_, definitions)), *_ = cassette.tools().items()
    assert {tool.name for tool in definitions if tool.read_only} == {"frob", "get_c", "put_d"}


def test_tools_go_to_the_first_server_that_matches_and_others_are_left_out_by_name(run, cassette):
    servers = (("fmp", "fmp_*"), ("rest", "get_*"), ("late", "fmp_get_x"))
    _, report = run(call("fmp_get_x"), call("get_y"), call("find_z"), call("find_z"), servers=servers)
    assert [(server, tool) for server, tool, *_ in kept(cassette)] == [("fmp", "fmp_get_x"), ("rest", "get_y")]
    assert report.unassigned == {"find_z": 2}
    assert list(cassette.tools()) == ["fmp", "rest"]


def test_an_argument_is_recorded_under_the_name_that_the_tool_knows(run, cassette):
    tools = {**listed("get_quote", "symbol"), **listed("get_details", "ticker")}
    calls = [call("get_quote", ticker="A"), call("get_details", symbol="B"), call("get_details", ticker="C")]
    _, report = run(*calls, tools=tools, aliases=TICKERS)
    assert [arguments for _, _, arguments, _ in kept(cassette)] == [{"ticker": "B"}, {"ticker": "C"}, {"symbol": "A"}]
    assert report.aliases_applied == 2


def test_an_inferred_definition_follows_the_calls_that_worked(run, cassette):
    failed = call("get_quote", "Error executing tool get_quote: 'symbol'", ticker="A")
    counts, report = run(failed, failed, call("get_quote", symbol="B"), aliases=TICKERS)
    (definition,) = cassette.tools()["recorded"][1]
    assert definition.parameters["required"] == ["symbol"]
    assert counts["get_quote"].inferred
    assert report.aliases_applied == 2


def test_a_call_that_does_not_fit_the_definition_is_counted_and_left_out(run, cassette):
    counts, _ = run(call("get_quote", symbol=3), call("get_quote", symbol="A"), tools=listed("get_quote", "symbol"))
    assert (counts["get_quote"].unfit, counts["get_quote"].recorded) == (1, 1)
    assert [arguments for _, _, arguments, _ in kept(cassette)] == [{"symbol": "A"}]


def test_a_definition_that_is_no_schema_stops_the_import(run):
    with pytest.raises(BadToolSchemaError):
        run(call("get_quote"), tools=listed("get_quote", type="nonsense"))


def test_of_differing_answers_the_last_of_the_logs_is_found_and_they_are_counted(run, cassette):
    counts, _ = run(
        *(call("get_quote", text, symbol="A") for text in ("1", "2", "3", "1")), call("get_quote", "9", symbol="B")
    )
    assert cassette.find("recorded", "7.0", "get_quote", {"symbol": "A"}).text == "1"
    assert cassette.answers("recorded", ANY_VERSION, "get_quote", {"symbol": "A"}) == ["2", "3", "1"]
    assert (counts["get_quote"].recorded, counts["get_quote"].distinct, counts["get_quote"].differing) == (5, 2, 1)


def test_importing_again_changes_nothing_and_a_further_log_adds(run, cassette):
    first = [call("get_quote", text, symbol="A") for text in ("1", "2", "1")]
    run(*first)
    before = kept(cassette), cassette.tools()
    run(*first)
    assert (kept(cassette), cassette.tools()) == before
    run(call("get_quote", "3", symbol="A", limit=5), call("get_news"))
    assert len(kept(cassette)) == len(before[0]) + 2
    quote, news = cassette.tools()["recorded"][1]
    assert (quote.name, news.name) == ("get_quote", "get_news")
    assert quote.parameters["properties"].keys() == {"symbol", "limit"}
    assert quote.parameters["required"] == ["symbol"]
    assert list(find_faults(cassette)) == []


def test_a_written_definition_replaces_an_inferred_one_and_stays(run, cassette):
    run(call("get_quote", symbol="A"))
    run(tools=listed("get_quote", "symbol", read_only=True))
    run(call("get_quote", symbol="B"))
    (definition,) = cassette.tools()["recorded"][1]
    assert (definition.description, definition.read_only) == ("D.", True)


def test_a_secret_in_a_log_is_struck_out_and_counted(run, cassette, tmp_path):
    key = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    url = f"https://api.example.com/quote?apikey={key}"
    _, report = run(call("get_page", f"See {url}", url=url), call("get_page", "clean", url="https://example.com"))
    assert report.redactions == 2
    assert key not in json.dumps(kept(cassette))
    assert list(find_faults(cassette)) == []


def test_faults_of_a_cassette_are_named(cassette):
    cassette.record_tools("s", "1", [listed("quote", "symbol")["quote"].definition])
    cassette.record("s", "1", "quote", {"symbol": "A"}, "fine")
    assert list(find_faults(cassette)) == []
    cassette.record("s", "1", "quote", {"symbol": 3}, "unfit")
    cassette.record("s", "1", "news", {}, "no definition")
    cassette._run("UPDATE listings SET definitions = replace(definitions, 'D.', 'E.')")
    secret = "https://a.example.com/?apikey=0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    cassette._run("UPDATE recordings SET answer = ? WHERE tool = 'news'", (secret.encode(),))
    assert list(find_faults(cassette)) == [
        "server 's': the definition of 'quote' is not the one recorded",
        "server 's', news {}: no definition of the tool is recorded",
        "server 's', news {}: the answer holds what looks like a secret",
        "server 's', quote {\"symbol\":3}: Bad arguments for quote: argument 'symbol' must be string, not integer.",
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("""UPDATE recordings SET arguments = '{"symbol": "A"}'""", "not in canonical form"),
        ("UPDATE recordings SET arguments = '{'", "are not JSON"),
        ("UPDATE recordings SET arguments = '[]'", "is invalid"),
        ("UPDATE recordings SET answer = 'text'", "an answer is not text"),
        ("UPDATE listings SET definitions = '[{}]'", "the tools of server 's' are unreadable"),
        ("UPDATE listings SET definitions = 'x'", "the tools of server 's' are unreadable"),
    ],
)
def test_rows_that_someone_else_wrote_are_damage(cassette, change, fault):
    cassette.record_tools("s", "1", [listed("quote", "symbol")["quote"].definition])
    cassette.record("s", "1", "quote", {"symbol": "A"}, "fine")
    cassette._run(change)
    assert len([line for line in find_faults(cassette) if fault in line]) == 1


def test_a_replay_tells_what_is_found_and_what_is_missing(run, cassette):
    known = [call("get_quote", symbol="A"), call("get_quote", "Error", symbol="A"), call("send_message")]
    run(*known)
    new = call("get_quote", symbol="Z")
    share = replay([*known, new], cassette, aliases={}, errors=error_rules())
    assert (share.calls, share.found, share.replayable, share.replayable_found) == (4, 2, 2, 1)
    assert [missing.call for missing in share.missing] == [new]


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded conversations are not beside the project")
def test_every_importable_call_of_the_real_logs_is_found_again(cassette):
    recordings = read_recordings(sorted(DATA.glob("*.json")))
    servers = tuple((name, f"{name}_*") for name in ("fmp", "polygon", "tavily"))
    rules = ImportRules(servers=(*servers, ("slack", "*_slack_*"), ("python", "*")), aliases=TICKERS)
    report = import_recordings(recordings, cassette, rules, {})
    share = replay(recordings.calls, cassette, aliases=TICKERS, errors=error_rules())
    # Counted apart from our code: the reads whose text is neither empty nor begins like an error.
    wrong = re.compile(r"\s*(❌|Error|'NoneType')")
    reads = [c for c in recordings.calls if re.search("get_|search|list_", c.tool)]
    worked = [c for c in reads if not c.failed and not wrong.match(c.text)]
    unfit = sum(count.unfit for count in report.tools)
    assert share.replayable == share.replayable_found == len(worked) - unfit == 889
    assert sum(count.writes for count in report.tools) == len(recordings.calls) - len(reads)
    assert report.aliases_applied == sum(
        ("ticker" in c.arguments and c.tool == "fmp_get_quote")
        or ("symbol" in c.arguments and c.tool.startswith("polygon"))
        for c in recordings.calls
    )
    assert all(SECRETS.redact(r.text) == r.text for r in cassette.recordings())
    assert list(find_faults(cassette)) == []
