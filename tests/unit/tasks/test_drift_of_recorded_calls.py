"""Recorded calls that do not fit the tools are found, with the alias that would fix them.

On the user's own files the findings are held against an oracle that shares no code with mcprl: it reads the raw JSON.
"""
# R17, R25, R31

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from mcprl.config import ServerSettings
from mcprl.conversations import calls_in
from mcprl.tasks import read_task_file
from mcprl.tasks.validation import alias_settings, check_call, validate
from mcprl.tools.catalog import resolve_arguments, resolve_tool
from shipped_tools import CONTRACT, SHIPPED_TOOLS

DATA = Path(__file__).parents[4] / "shared" / "data"
FILES = ("recorded-train.json", "recorded-validation.json", "processed-train.json")
TOOLS = {tool.name: tool for tool in SHIPPED_TOOLS}


def calls_in_raw_text(text: str) -> list[dict]:
    """The two ways in which these files write a call, found in the text itself."""
    if text.startswith('{"function_call"'):
        return [json.loads(text)["function_call"]]
    return [json.loads(block) for block in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)]


def oracle(path: Path) -> set[tuple]:
    """(row, message, tool, unknown arguments, missing arguments) of each call that does not fit the contract."""
    contract = {}
    for line in CONTRACT.strip().splitlines():
        _, name, required, *optional = line.split()
        needed = {word for word in required.split(",") if word != "-"}
        contract[name] = (needed, needed | {word.rstrip("#") for word in optional})
    wrong = set()
    for number, row in enumerate(json.loads(path.read_text(encoding="utf-8")), start=1):
        for conversation in (row["prompt"], row["extra_info"].get("original_conversation", [])):
            for place, message in enumerate(conversation, start=1):
                if message["role"] != "assistant":
                    continue
                for call in calls_in_raw_text(message["content"]):
                    given = call["arguments"]
                    given = set(json.loads(given) if isinstance(given, str) else given)
                    needed, known = contract.get(call["name"], (set(), set()))
                    if call["name"] not in contract or given - known or needed - given:
                        unknown, missing = tuple(sorted(given - known)), tuple(sorted(needed - given))
                        wrong.add((f"row {number}", place, call["name"], unknown, missing))
    return wrong


def names_in(problems: tuple[str, ...], words: str) -> tuple[str, ...]:
    return tuple(sorted(found[1] for text in problems if (found := re.fullmatch(rf"{words} '(.+)'", text))))


@pytest.fixture(params=FILES)
def path(request) -> Path:
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    return DATA / request.param


def test_the_report_names_every_call_that_does_not_exist_and_no_other(path):
    report = validate(read_task_file(path), SHIPPED_TOOLS)
    found = {
        (
            call.row,
            call.message,
            call.tool,
            names_in(call.problems, "has no argument"),
            names_in(call.problems, "is missing the argument"),
        )
        for call in report.drift
    }
    assert found == oracle(path)
    assert len(report.drift) == len(found)


def test_the_known_drift_of_the_training_file_has_its_aliases():
    if not DATA.exists():
        pytest.skip("../shared/data is missing: put the user's SkyRL files there")
    report = validate(read_task_file(DATA / "recorded-train.json"), SHIPPED_TOOLS)
    assert Counter((call.tool, "; ".join(map(str, call.aliases))) for call in report.drift) == {
        ("fmp_get_quote", "argument_aliases: {ticker: symbol}"): 13,
        ("polygon_get_ticker_details", "argument_aliases: {symbol: ticker}"): 5,
        ("polygon_get_news", ""): 3,  # called without a ticker: no other name for anything
        ("execute_python", ""): 1,  # has `return` besides all that it needs
    }
    assert alias_settings(report.drift) == {
        "fmp": {"argument_aliases": {"ticker": "symbol"}},
        "polygon": {"argument_aliases": {"symbol": "ticker"}},
    }


def test_with_the_aliases_in_the_recipe_the_tool_runtime_takes_every_call_that_has_one(path):
    rows = json.loads(path.read_text(encoding="utf-8"))
    report = validate(read_task_file(path), SHIPPED_TOOLS)
    settings = {name: ServerSettings(**entry) for name, entry in alias_settings(report.drift).items()}
    for call in report.drift:
        row = rows[int(call.row.removeprefix("row ")) - 1]
        conversation = row["prompt"] if call.part == "prompt" else row["extra_info"]["original_conversation"]
        (written,) = calls_in(conversation[call.message - 1])
        aliases = settings.get(TOOLS[written.name].server, ServerSettings()).argument_aliases
        properties = TOOLS[written.name].parameters["properties"]
        mended = resolve_arguments(written.arguments, properties, aliases)
        assert (check_call(written.name, mended, TOOLS).problems == ()) == bool(call.aliases)


def conversation(*calls: tuple[str, dict]) -> list[dict]:
    blocks = [f"<tool_call>{json.dumps({'name': name, 'arguments': given})}</tool_call>" for name, given in calls]
    return [{"role": "user", "content": "?"}, *({"role": "assistant", "content": block} for block in blocks)]


@pytest.fixture
def drift_of_rows(tmp_path):
    def run(*rows: dict):
        path = tmp_path / "rows.json"
        path.write_text(json.dumps([{"env_class": "e", **row} for row in rows]))
        return validate(read_task_file(path), SHIPPED_TOOLS).drift

    return run


@pytest.mark.parametrize(
    ("call", "aliases"),
    [
        (("fmp_get_quote", {"symbol": "A"}), None),
        (("fmp_get_quote", {"ticker": "A"}), ["argument_aliases: {ticker: symbol}"]),
        (("execute_python", {"python_code": "1"}), ["argument_aliases: {python_code: code}"]),
        (("get_slack_channel_history", {"channel": "C1"}), ["argument_aliases: {channel: channel_id}"]),
        (("tavily_search", {"query": "x", "max_result": 3}), ["argument_aliases: {max_result: max_results}"]),
        (
            ("polygon_get_aggs", {"symbol": "A", "from_date": "x", "to_end_date": "y"}),
            [
                "argument_aliases: {from_date: start_date}; argument_aliases: {to_end_date: end_date}; "
                "argument_aliases: {symbol: ticker}"
            ],
        ),
        # Two strangers for two places: nobody can say which is which.
        (("send_slack_message", {"x": "general", "y": "hello"}), []),
        # A number where a text is wanted is no other name of it.
        (("fmp_get_quote", {"amount": 3}), []),
        (("fmp_get_quotes", {"symbol": "A"}), ["tool_aliases: {fmp_get_quotes: fmp_get_quote}"]),
        (
            ("fmp_get_quotes", {"ticker": "A"}),
            ["tool_aliases: {fmp_get_quotes: fmp_get_quote}; argument_aliases: {ticker: symbol}"],
        ),
        (("weather", {"city": "Lima"}), []),
    ],
)
def test_a_call_has_the_aliases_that_would_fix_all_of_it_or_none(drift_of_rows, call, aliases):
    drift = drift_of_rows({"prompt": conversation(call)})
    if aliases is None:
        assert drift == ()
    else:
        assert [sorted(map(str, found.aliases)) for found in drift] == [
            sorted("; ".join(aliases).split("; ")) if aliases else []
        ]


def test_calls_are_found_in_every_conversation_of_a_row_with_their_places(drift_of_rows):
    wrong = ("fmp_get_quote", {"ticker": "A"})
    old = {"extra_info": {"original_conversation": [{"role": "system", "content": "x"}, *conversation(wrong)]}}
    native = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "nothing", "arguments": "{}"}}]}
    found = drift_of_rows(
        {"prompt": [*conversation(("fmp_get_quote", {"symbol": "A"}), wrong), native]}, {"prompt": "Hi?", **old}
    )
    assert [(call.row, call.part, call.message, call.tool) for call in found] == [
        ("row 1", "prompt", 3, "fmp_get_quote"),
        ("row 1", "prompt", 4, "nothing"),
        ("row 2", "extra_info.original_conversation", 3, "fmp_get_quote"),
    ]


def test_a_call_that_cannot_be_read_is_drift_too(drift_of_rows):
    broken = {"role": "assistant", "content": "<tool_call>{nonsense</tool_call>"}
    (found,) = drift_of_rows({"prompt": [{"role": "user", "content": "?"}, broken]})
    assert found.problems[0].startswith("the call is not JSON")
    assert found.aliases == ()


def test_if_a_name_means_two_things_on_one_server_the_more_frequent_is_kept(drift_of_rows):
    calls = [("tavily_search", {"text": "x"}), ("tavily_qna_search", {"text": "y"})]
    assert alias_settings(drift_of_rows({"prompt": conversation(*calls)})) == {
        "tavily": {"argument_aliases": {"text": "query"}}
    }
    calls = [
        ("process_mcp_data", {"data": "d", "program": "1"}),
        ("execute_python", {"program": "1"}),
        ("execute_python", {"program": "2"}),
    ]
    assert alias_settings(drift_of_rows({"prompt": conversation(*calls)})) == {
        "python": {"argument_aliases": {"program": "code"}}
    }


def test_the_aliases_are_valid_settings_of_a_recipe(drift_of_rows):
    settings = alias_settings(drift_of_rows({"prompt": conversation(("fmp_get_quotes", {"ticker": "A"}))}))
    read = yaml.safe_load(yaml.safe_dump(settings))
    fmp = ServerSettings(**read["fmp"])
    assert resolve_tool("fmp_get_quotes", TOOLS, fmp.tool_aliases) == "fmp_get_quote"
    assert resolve_arguments({"ticker": "A"}, {"symbol"}, fmp.argument_aliases) == {"symbol": "A"}


def test_a_tool_that_takes_any_argument_has_no_unknown_one():
    (tool,) = (tool for tool in SHIPPED_TOOLS if tool.name == "fmp_get_quote")
    free = {
        "fmp_get_quote": type(tool)(
            name=tool.name, description="", server="fmp", parameters={**tool.parameters, "additionalProperties": True}
        )
    }
    assert check_call("fmp_get_quote", {"symbol": "A", "more": 1}, free).problems == ()
