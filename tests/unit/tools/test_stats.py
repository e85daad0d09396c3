"""Statistics of calls: each is counted once, under what happened to it, at a cost that no call notices."""
# R15

from __future__ import annotations

import json
import time
import timeit
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import CallDeadlineError, ConfigFileError, Fault, McprlError, ServerBusyError
from mcprl.records import Observation, Source
from mcprl.tools.stats import (
    ServerStats,
    StatsDocument,
    ToolStats,
    merge_stats,
    read_stats,
    stats_document,
    write_stats,
)


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
        "missing": 0,
        "shared": 0,
        "truncated": 0,
        "latency_ms": {"p50": 2.0, "p95": 2.0, "max": 2.0, "buckets": {764: 1}},
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
    latency = stats.as_dict()["directory"]["find_person"]["latency_ms"]
    assert latency == {"p50": 500.0, "p95": 500.0, "max": 500.0, "buckets": {1319: 1}}


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
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed_or_one_per_cent_above(microseconds):
    stats = ToolStats()
    for value in microseconds:
        stats.record(seen(latency_s=value / 1e6))
    latency = stats.as_dict()["directory"]["find_person"]["latency_ms"]
    assert latency is not None
    for name, share in (("p50", Fraction(1, 2)), ("p95", Fraction(19, 20))):
        reached = [v for v in microseconds if Fraction(sum(w <= v for w in microseconds), len(microseconds)) >= share]
        # Milliseconds are rounded to three digits.
        assert min(reached) / 1000 - 0.0006 <= latency[name] <= 1.01 * min(reached) / 1000 + 0.0006
    assert latency["max"] == pytest.approx(max(microseconds) / 1000)


def test_calls_without_end_of_any_duration_fill_a_bounded_number_of_buckets():
    stats = ToolStats()
    for n in range(20_000):
        stats.record(seen(latency_s=1e-6 * 3.6e9 ** (n / 20_000)))  # from a microsecond to an hour
    latency = stats.as_dict()["directory"]["find_person"]["latency_ms"]
    assert latency is not None
    assert len(latency.get("buckets", {})) < 2500


def test_a_record_costs_less_than_two_microseconds(record_property, untraced):
    stats = ToolStats()
    observation = seen(latency_s=0.001)

    # The best of many short rounds: the machine may be busy, the code is as fast as its fastest round.
    def best() -> float:
        rounds = timeit.repeat(lambda: stats.record(observation), timer=time.thread_time, number=2000, repeat=50)
        return min(rounds) / 2000 * 1e6

    # Twice the bar fails, and only if it is missed in a second measurement, too.
    best_us = best()
    best_us = best_us if best_us < 2 * 2.0 else min(best_us, best())
    record_property("tool_stats_record_us", best_us)
    assert best_us < 2 * 2.0


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


OBSERVATIONS = st.builds(
    seen,
    tool=st.sampled_from(["find_person", "list_people"]),
    server=st.sampled_from(["directory", "time", None]),
    latency_s=st.sampled_from([0.0, 1e-7]) | st.floats(1e-6, 100),
    fault=st.sampled_from([None, Fault.POLICY]),
    source=st.sampled_from(Source),
    attempts=st.integers(1, 3),
    truncated=st.booleans(),
)
HAPPENINGS = OBSERVATIONS | st.tuples(
    st.sampled_from([failure(), ServerBusyError("busy", fix="wait")]), st.floats(0, 60)
)
PRICE = Decimal("0.1")


class Worker:
    """A toolbox's figures, without the toolbox."""

    def __init__(self) -> None:
        self._stats = ToolStats()
        self._calls = dict.fromkeys(["directory", "time"], 0)

    def see(self, happening: Observation | tuple[McprlError, float], *, shared: bool) -> None:
        if isinstance(happening, Observation):
            self._stats.record(happening, shared=shared)
            server = happening.server
        else:
            server, (error, latency_s) = "time", happening
            self._stats.record_failure(server, "get_time", error, latency_s)
        if server is not None:
            self._calls[server] += 1

    def document(self) -> StatsDocument:
        servers = {
            server: ServerStats(restarts=calls % 3, calls=calls, usd=float(calls * PRICE), breaker_openings=calls)
            for server, calls in self._calls.items()
        }
        return stats_document(servers, self._stats)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), HAPPENINGS), max_size=80))
def test_merged_figures_are_those_of_one_toolbox_that_got_all_calls(happenings):
    workers, one = [Worker() for _ in range(4)], Worker()
    for number, shared, happening in happenings:
        workers[number].see(happening, shared=shared)
        one.see(happening, shared=shared)
    parts, expected = [worker.document() for worker in workers], one.document()
    for server in expected["servers"]:
        expected["servers"][server]["restarts"] = sum(part["servers"][server]["restarts"] for part in parts)
    assert merge_stats(parts) == expected
    # In two steps, too.
    assert merge_stats([merge_stats(parts[:1]), merge_stats(parts[1:])]) == expected


def test_figures_that_were_written_can_still_be_merged(tmp_path):
    worker = Worker()
    worker.see(seen(latency_s=0.25), shared=False)
    document = worker.document()
    write_stats(tmp_path, document)
    assert merge_stats([read_stats(tmp_path), document]) == merge_stats([document, document])


def test_a_server_that_only_one_toolbox_has_is_in_the_merged_figures():
    documents = [stats_document({name: ServerStats(calls=2)}, ToolStats()) for name in ("directory", "time")]
    merged = merge_stats(documents)
    assert {name: figures["calls"] for name, figures in merged["servers"].items()} == {"directory": 2, "time": 2}


def test_nothing_merges_to_nothing():
    assert merge_stats([]) == {"servers": {}, "unknown_tool_calls": 0}


def test_calls_of_a_worker_that_is_gone_are_counted_if_the_service_knows_them():
    parts = [stats_document({"fmp": ServerStats(calls=2, usd=0.2), "time": ServerStats(calls=5)}, ToolStats())] * 2
    merged = merge_stats(parts, spent={"fmp": (7, 0.7), "time": (0, 0.0)})
    assert (merged["servers"]["fmp"]["calls"], merged["servers"]["fmp"]["usd"]) == (7, 0.7)
    # This one has no limits, so nobody told the service.
    assert merged["servers"]["time"]["calls"] == 10


def test_figures_of_an_older_run_are_shown_but_not_merged(tmp_path):
    worker = Worker()
    worker.see(seen(latency_s=0.25), shared=False)
    document = worker.document()
    latency = document["servers"]["directory"]["tools"]["find_person"]["latency_ms"]
    assert latency is not None
    latency.pop("buckets")
    write_stats(tmp_path, document)
    assert read_stats(tmp_path) == document
    with pytest.raises(ValueError, match="older run"):
        merge_stats([document])


def test_a_folder_without_figures_is_an_error_with_the_fix(tmp_path):
    with pytest.raises(ConfigFileError, match=r"tool_stats\.json cannot be read.*Fix: pass the folder of a run"):
        read_stats(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"servers": {"time": {"restarts": 0}}}'])
def test_a_file_of_something_else_is_an_error_that_says_where(tmp_path, text):
    (tmp_path / "tool_stats.json").write_text(text)
    with pytest.raises(ConfigFileError, match=r"does not contain tool statistics: \S+"):
        read_stats(tmp_path)
