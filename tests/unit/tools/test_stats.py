"""Statistics of calls: each is counted once, under what happened to it, at a cost that no call notices."""
# R15

from __future__ import annotations

import json
import statistics
import timeit
import tracemalloc
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import CallDeadlineError, ConfigFileError, Fault, ServerBusyError
from mcprl.records import Observation, Source
from mcprl.tools.stats import ServerStats, ToolStats, read_stats, stats_document, write_stats


def seen(tool="find_person", server: str | None = "directory", **fields) -> Observation:
    return Observation(tool=tool, server=server, text="…", **fields)


def failure() -> CallDeadlineError:
    return CallDeadlineError("too late", fix="wait")


def test_a_call_is_counted_under_its_server_and_tool():
    stats = ToolStats()
    stats.record(seen(latency_s=0.002))
    stats.record(seen("list_people", latency_s=0.004))
    stats.record(seen("get_time", "time", latency_s=0.001))
    figures = stats.as_dict()
    assert {server: list(tools) for server, tools in figures.items()} == {
        "directory": ["find_person", "list_people"],
        "time": ["get_time"],
    }
    assert figures["directory"]["find_person"] == {
        "calls": 1,
        "ok": 1,
        "policy_faults": 0,
        "failures": {},
        "retries": 0,
        "cached": 0,
        "replayed": 0,
        "shared": 0,
        "truncated": 0,
        "latency_ms": {"p50": 2.0, "p95": 2.0, "max": 2.0},
    }


def test_every_outcome_has_its_count_and_they_add_up_to_the_calls():
    stats = ToolStats()
    stats.record(seen(latency_s=0.1, attempts=3))
    stats.record(seen(latency_s=0.2, fault=Fault.POLICY, truncated=True))
    stats.record(seen(source=Source.CACHE))
    stats.record(seen(source=Source.CASSETTE))
    stats.record(seen(source=Source.CASSETTE, fault=Fault.POLICY))
    stats.record(seen(latency_s=0.1, attempts=3), shared=True)
    stats.record_failure("directory", "find_person", failure(), 30.0)
    stats.record_failure("directory", "find_person", failure(), 30.0)
    stats.record_failure("directory", "find_person", ServerBusyError("busy", fix="wait"), 1.0)
    figures = stats.as_dict()["directory"]["find_person"]
    assert figures["failures"] == {"E-TOOL-012": 2, "E-TOOL-014": 1}
    assert (figures["calls"], figures["ok"], figures["policy_faults"]) == (9, 4, 2)
    assert (figures["cached"], figures["replayed"], figures["shared"], figures["truncated"]) == (1, 2, 1, 1)
    # The two attempts that both callers of the shared call waited for were made once.
    assert figures["retries"] == 2


def test_only_calls_that_reached_the_server_say_how_fast_it_is():
    stats = ToolStats()
    stats.record(seen(latency_s=0.5))
    for other in (
        seen(latency_s=0.0, fault=Fault.POLICY),
        seen(latency_s=0.001, source=Source.CACHE),
        seen(latency_s=0.001, source=Source.CASSETTE),
    ):
        stats.record(other)
    stats.record(seen(latency_s=0.4), shared=True)
    assert stats.as_dict()["directory"]["find_person"]["latency_ms"] == {"p50": 500.0, "p95": 500.0, "max": 500.0}


def test_a_tool_that_was_never_called_live_has_no_latency():
    stats = ToolStats()
    stats.record(seen(latency_s=0.001, source=Source.CASSETTE))
    assert stats.as_dict()["directory"]["find_person"]["latency_ms"] is None


def test_calls_of_invented_tools_are_one_number_whatever_their_names():
    stats = ToolStats()
    for n in range(1000):
        stats.record(seen(f"tool_{n}", None, fault=Fault.POLICY))
    assert stats.unknown_tool_calls == 1000
    assert stats.as_dict() == {}


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(microseconds):
    stats = ToolStats()
    for value in microseconds:
        stats.record(seen(latency_s=value / 1e6))
    latency = stats.as_dict()["directory"]["find_person"]["latency_ms"]
    assert latency is not None
    for name, share in (("p50", Fraction(1, 2)), ("p95", Fraction(19, 20))):
        reached = [v for v in microseconds if Fraction(sum(w <= v for w in microseconds), len(microseconds)) >= share]
        assert latency[name] == pytest.approx(min(reached) / 1000)
    assert latency["p50"] == pytest.approx(statistics.median_low(microseconds) / 1000)
    assert latency["max"] == pytest.approx(max(microseconds) / 1000)


def test_percentiles_are_those_of_the_last_calls_and_the_maximum_that_of_all():
    stats = ToolStats()
    stats.record(seen(latency_s=9.0))
    for _ in range(3000):
        stats.record(seen(latency_s=0.01))
    assert stats.as_dict()["directory"]["find_person"]["latency_ms"] == {"p50": 10.0, "p95": 10.0, "max": 9000.0}


def test_memory_does_not_grow_with_the_number_of_calls():
    stats = ToolStats()
    observations = [seen(latency_s=0.001 * n) for n in range(1, 100)]
    for n in range(5000):
        stats.record(observations[n % 99])
    tracemalloc.start()
    for n in range(50_000):
        stats.record(observations[n % 99])
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10_000


def test_a_record_costs_less_than_two_microseconds(record_property, untraced):
    stats = ToolStats()
    observation = seen(latency_s=0.001)
    # The best of many short rounds: the machine may be busy, the code is as fast as its fastest round.
    best_us = min(timeit.repeat(lambda: stats.record(observation), number=2000, repeat=50)) / 2000 * 1e6
    record_property("tool_stats_record_us", best_us)
    assert best_us < 2.0


def test_a_run_writes_its_figures_and_reads_them_back_with_servers_that_were_never_called(tmp_path):
    stats = ToolStats()
    stats.record(seen(latency_s=0.0123456))
    stats.record(seen("nothing", None, fault=Fault.POLICY))
    servers = {
        "directory": ServerStats(restarts=1, calls=1, usd=0.002, breaker_openings=2),
        "time": ServerStats(),
    }
    document = stats_document(servers, stats)
    write_stats(tmp_path, document)
    assert read_stats(tmp_path) == document
    assert [path.name for path in tmp_path.iterdir()] == ["tool_stats.json"]
    text = json.loads((tmp_path / "tool_stats.json").read_text())
    assert text["unknown_tool_calls"] == 1
    assert text["servers"]["time"] == {"restarts": 0, "calls": 0, "usd": 0.0, "breaker_openings": 0, "tools": {}}
    directory = text["servers"]["directory"]
    assert (directory["restarts"], directory["usd"], directory["breaker_openings"]) == (1, 0.002, 2)
    assert directory["tools"]["find_person"]["latency_ms"]["p50"] == 12.346


def test_a_folder_without_figures_is_an_error_with_the_fix(tmp_path):
    with pytest.raises(ConfigFileError, match=r"tool_stats\.json cannot be read.*Fix: give the folder of a run"):
        read_stats(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"servers": {"time": {"restarts": 0}}}'])
def test_a_file_of_something_else_is_an_error_that_says_where(tmp_path, text):
    (tmp_path / "tool_stats.json").write_text(text)
    with pytest.raises(ConfigFileError, match=r"holds no tool statistics: \S+"):
        read_stats(tmp_path)
