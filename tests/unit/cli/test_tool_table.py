"""The tables of tools show what servers wrote, whatever they wrote, and figures whole on any usual terminal."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mcprl.cli.tools import observation_details, print_tool_stats, print_tools
from mcprl.errors import Fault
from mcprl.records import Observation, Source
from mcprl.tools.catalog import Tool
from mcprl.tools.stats import ServerFigures, StatsDocument, ToolFigures


def shown(show, width: int, *arguments) -> list[str]:
    """What a function prints."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(console, *arguments)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def make_tool(name="find", **fields) -> Tool:
    parameters = {"type": "object", "properties": {"name": {}, "city": {}}, "required": ["name"]}
    return Tool(**{"description": "", "parameters": parameters, "server": "directory", "name": name, **fields})


def figures(**counts) -> ToolFigures:
    empty = dict.fromkeys(["calls", "ok", "policy_faults", "retries", "cached", "replayed", "shared", "truncated"], 0)
    return ToolFigures(**{**empty, "failures": {}, "latency_ms": None, **counts})


def server(tools: dict[str, ToolFigures], **counts) -> ServerFigures:
    return ServerFigures(**{"restarts": 0, "calls": 0, "usd": 0.0, "breaker_openings": 0, "tools": tools, **counts})


BUSY = StatsDocument(
    servers={
        "directory": server({"find_person": figures(calls=400, ok=380, policy_faults=20)}, calls=400),
        "fmp": server(
            {
                "fmp_get_quote": figures(
                    calls=41_000,
                    ok=40_900,
                    policy_faults=97,
                    failures={"E-TOOL-012": 2, "E-TOOL-999": 1},
                    retries=14,
                    cached=20_000,
                    replayed=3,
                    shared=312,
                    truncated=5,
                    latency_ms={"p50": 212.84, "p95": 1840.3, "max": 30002.1},
                ),
                "fmp_get_historical_prices_adjusted_for_splits": figures(calls=10, ok=10),
            },
            calls=21_250,
            usd=12.5,
            restarts=2,
            breaker_openings=1,
        ),
        "idle": server({}),
    },
    unknown_tool_calls=1,
)


def test_optional_arguments_stand_in_brackets_and_descriptions_are_no_markup():
    description = "[red]Danger[/red] [/nothing] \x1b[31mred"
    assert shown(print_tools, 200, [make_tool(description=description, server="[bold]s")]) == [
        "[bold]s",
        "  find(name, [city])",
        "    [red]Danger[/red] [/nothing] \\x1b[31mred",
    ]


def test_a_tool_says_what_it_may_do_and_what_else_it_is_called():
    tools = [make_tool("read", read_only=True, idempotent=True), make_tool("put", idempotent=True), make_tool("send")]
    assert shown(print_tools, 120, tools, {"look": "read", "see": "read", "other": "elsewhere"}) == [
        "directory",
        "  read(name, [city])  read-only",
        "    Also called look, see.",
        "  put(name, [city])  idempotent",
        "  send(name, [city])",
    ]


def test_each_tool_is_a_paragraph_below_its_server():
    tools = [
        make_tool("find_person", description="City and time zone of a colleague. " * 3, read_only=True),
        make_tool("list_people", description="Names.\n\nA second paragraph.", server="people"),
    ]
    assert shown(print_tools, 80, tools, {"who_is": "find_person"}) == [
        "directory",
        "  find_person(name, [city])  read-only",
        "    City and time zone of a colleague. City and time zone of a colleague. City",
        "    and time zone of a colleague. Also called who_is.",
        "people",
        "  list_people(name, [city])",
        "    Names.",
    ]


def test_a_description_of_pages_is_cut_between_words():
    (line,) = shown(print_tools, 400, [make_tool(description="word " * 1000)])[2:]
    assert line.endswith("word…")
    assert line.count("word") == 39


def test_figures_are_right_aligned_with_separators_and_totals():
    assert shown(print_tool_stats, 200, BUSY) == [
        "server     calls made    usd  restarts  breaker opened",
        "directory         400   0.00         0               0",
        "fmp            21,250  12.50         2               1",
        "idle                0   0.00         0               0",
        "total          21,650  12.50         2               1",
        "",
        "tool                                              calls      ok  policy faults  failed"
        "  p50 ms   p95 ms    max ms",
        "directory",
        "  find_person                                       400     380             20       0",
        "fmp",
        "  fmp_get_quote                                  41,000  40,900             97       3"
        "   212.8  1,840.3  30,002.1",
        "  fmp_get_historical_prices_adjusted_for_splits      10      10              0       0",
        "total                                            41,410  41,290            117       3",
        "",
        "1 more call used an unknown tool name.",
        "",
        "tool            times  what",
        "fmp_get_quote      14  retries of failed calls",
        "fmp_get_quote  20,000  results from the cache",
        "fmp_get_quote       3  results from a cassette",
        "fmp_get_quote     312  results shared with an identical concurrent call",
        "fmp_get_quote       5  truncated results",
        "fmp_get_quote       2  E-TOOL-012  A tool call took longer than its deadline",
        "fmp_get_quote       1  E-TOOL-999",
    ]


def test_what_never_happened_takes_no_column():
    quiet = StatsDocument(servers={"directory": server({"find_person": figures(calls=7, ok=7)}, calls=7)})
    assert shown(print_tool_stats, 80, quiet) == [
        "server     calls made  restarts  breaker opened",
        "directory           7         0               0",
        "total               7         0               0",
        "",
        "tool           calls  ok  policy faults  failed",
        "directory",
        "  find_person      7   7              0       0",
        "total              7   7              0       0",
    ]


def test_parts_of_a_cent_are_shown_where_there_are_any():
    document = StatsDocument(servers={"fmp": server({}, calls=3, usd=0.0024)})
    assert shown(print_tool_stats, 80, document)[1].split() == ["fmp", "3", "0.0024", "0", "0"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_terminal_shows_every_figure_whole(width):
    lines = shown(print_tool_stats, width, BUSY)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    for figure in ("41,000", "40,900", "97", "20,000", "312", "212.8", "1,840.3", "30,002.1"):
        assert figure in words
    assert "…" not in "".join(lines)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from([80, 120]))
def test_counts_of_any_size_are_shown_whole(calls, cached, width):
    tool = figures(calls=calls, ok=calls, cached=cached)
    lines = shown(print_tool_stats, width, StatsDocument(servers={"s": server({"a_tool_of_usual_length": tool})}))
    words = " ".join(lines).split()
    assert words.count(f"{calls:,}") >= 2
    assert not cached or f"{cached:,}" in words


def test_only_what_went_wrong_is_coloured():
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard", highlight=False)
    print_tool_stats(console, BUSY)
    red = [line for line in console.file.getvalue().splitlines() if "\x1b[1;31m" in line]
    # The breaker that opened, and the calls that failed.
    assert len(red) == 2
    assert "\x1b[1;31m             3\x1b[0m".replace(" ", "") in red[1].replace(" ", "")


def test_names_from_a_file_of_figures_are_no_markup():
    document = StatsDocument(servers={"[red]s": server({"[bold]t\x1b[2J": figures(calls=1, failures={"[x]": 1})})})
    text = "\n".join(shown(print_tool_stats, 120, document))
    assert "[red]s" in text
    assert "[bold]t\\x1b[2J" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("observation", "line"),
    [
        (Observation(tool="t", server="fmp", text="", latency_s=1.2345), "fmp · 1,234 ms · live · 1 attempt"),
        (
            Observation(tool="t", server="fmp", text="", latency_s=0.1, attempts=3, truncated=True),
            "fmp · 100 ms · live · 3 attempts · truncated",
        ),
        (
            Observation(tool="t", server="fmp", text="", latency_s=0.01, source=Source.CASSETTE, fault=Fault.POLICY),
            "fmp · 10 ms · cassette · 1 attempt · an error",
        ),
        (
            Observation(tool="t", server=None, text="", fault=Fault.POLICY),
            "no server · refused before reaching the server",
        ),
    ],
)
def test_an_answer_says_in_a_line_where_it_came_from(observation, line):
    assert observation_details(observation).plain == line
