"""Statistics of tool calls by server and tool: cheap to record, bounded in memory, written as JSON.

They are written to `FILE_NAME` in a run's folder; `mcprl tools stats` shows them.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import NotRequired, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from mcprl.errors import ConfigFileError, McprlError
from mcprl.files import write_file
from mcprl.records import Observation, Source

T = TypeVar("T")

FILE_NAME = "tool_stats.json"

# Each latency bucket ends 1% above the previous one.
_BUCKETS_PER_E = 1 / math.log(1.01)
# Looking up an enum member takes longer than the rest of `record`.
_LIVE, _CACHE, _CASSETTE, _MISSING = Source.LIVE, Source.CACHE, Source.CASSETTE, Source.MISSING


class LatencyFigures(TypedDict):
    """Milliseconds from call to answer, over all live calls. Percentiles are up to 1% too high; `max` is exact.

    `buckets` counts the calls by latency: bucket n ends at 1.01ⁿ microseconds. With them, the figures of several
    toolboxes can be merged. Files of older runs have none.
    """

    p50: float
    p95: float
    max: float
    buckets: NotRequired[dict[int, int]]


class ToolFigures(TypedDict):
    """The calls of one tool. `calls` equals `ok` + `policy_faults` + the sum of `failures`.

    `missing` counts calls to a replayed tool that have no recording. Files of older runs do not have it.
    """

    calls: int
    ok: int
    policy_faults: int
    failures: dict[str, int]
    retries: int
    cached: int
    replayed: int
    missing: NotRequired[int]
    shared: int
    truncated: int
    latency_ms: LatencyFigures | None


class ServerFigures(TypedDict):
    """The figures of one server and its tools."""

    restarts: int
    calls: int
    usd: float
    breaker_openings: int
    tools: dict[str, ToolFigures]


class StatsDocument(TypedDict):
    """All servers of a run. `unknown_tool_calls` counts calls to tools that no server offers."""

    servers: dict[str, ServerFigures]
    unknown_tool_calls: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats:
    """The counts of one server as a whole. `calls` counts the calls actually sent, including retries.

    ServerStats(restarts=1, calls=250, usd=0.25, breaker_openings=0)
    """

    restarts: int = 0
    calls: int = 0
    usd: float = 0.0
    breaker_openings: int = 0


class ToolStats:
    """Counts for each tool of each server.

    stats = ToolStats()
    stats.record(observation)
    stats.as_dict()["directory"]["find_person"]["ok"]  # 1
    """

    def __init__(self) -> None:
        self.unknown_tool_calls = 0
        """Calls to tools that do not exist. Not counted per name, because the policy may invent any number of names."""
        self._counts: dict[tuple[str, str], _Counts] = {}

    def record(self, observation: Observation, *, shared: bool = False) -> None:
        """Count a call that got an answer. `shared` means that it joined an equal call in flight."""
        if observation.server is None:
            self.unknown_tool_calls += 1
            return
        counts = self._of(observation.server, observation.tool)
        counts.calls += 1
        if observation.fault is not None:
            counts.policy_faults += 1
        if observation.truncated:
            counts.truncated += 1
        if shared:
            counts.shared += 1
            return
        source = observation.source
        if source is _LIVE:
            counts.retries += observation.attempts - 1
            counts.add_latency(observation.latency_s)
        elif source is _CACHE:
            counts.cached += 1
        elif source is _CASSETTE:
            counts.replayed += 1
        elif source is _MISSING:
            counts.missing += 1

    def record_failure(self, server: str, tool: str, error: McprlError, latency_s: float) -> None:
        """Count a call that got no answer, by its error code."""
        counts = self._of(server, tool)
        counts.calls += 1
        counts.failures[error.code] = counts.failures.get(error.code, 0) + 1
        counts.add_latency(latency_s)

    def as_dict(self) -> dict[str, dict[str, ToolFigures]]:
        """Return server → tool → figures, in the order of the first calls."""
        servers: dict[str, dict[str, ToolFigures]] = {}
        for (server, tool), counts in self._counts.items():
            servers.setdefault(server, {})[tool] = counts.figures()
        return servers

    def _of(self, server: str, tool: str) -> _Counts:
        counts = self._counts.get((server, tool))
        if counts is None:
            counts = self._counts[server, tool] = _Counts()
        return counts


@dataclass(slots=True)
class _Counts:
    """The running counts of one tool."""

    calls: int = 0
    policy_faults: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    retries: int = 0
    cached: int = 0
    replayed: int = 0
    missing: int = 0
    shared: int = 0
    truncated: int = 0
    buckets: dict[int, int] = field(default_factory=dict[int, int])
    longest_s: float = 0.0

    def add_latency(self, latency_s: float) -> None:
        if not latency_s:
            return  # rejected before it reached the server, so its latency says nothing about the server
        bucket = math.ceil(math.log(latency_s * 1e6) * _BUCKETS_PER_E)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        if latency_s > self.longest_s:
            self.longest_s = latency_s

    def figures(self) -> ToolFigures:
        return ToolFigures(
            calls=self.calls,
            ok=self.calls - self.policy_faults - sum(self.failures.values()),
            policy_faults=self.policy_faults,
            failures=dict(sorted(self.failures.items())),
            retries=self.retries,
            cached=self.cached,
            replayed=self.replayed,
            missing=self.missing,
            shared=self.shared,
            truncated=self.truncated,
            latency_ms=_latency_figures(self.buckets, round(1000 * self.longest_s, 3)) if self.buckets else None,
        )


def stats_document(servers: Mapping[str, ServerStats], tools: ToolStats) -> StatsDocument:
    """Return all figures of a run, including servers that were never called."""
    by_server = tools.as_dict()
    return StatsDocument(
        servers={
            name: ServerFigures(**asdict(server), tools=by_server.get(name, {})) for name, server in servers.items()
        },
        unknown_tool_calls=tools.unknown_tool_calls,
    )


def merge_stats(
    documents: Sequence[StatsDocument], *, spent: Mapping[str, tuple[int, float]] | None = None
) -> StatsDocument:
    """Merge the figures of several toolboxes, as if one toolbox had made all calls.

    `spent` holds the calls and USD that a limits service counted per server, including those of workers that died.
    """
    names = dict.fromkeys(name for document in documents for name in document["servers"])
    servers: dict[str, ServerFigures] = {}
    for name in names:
        parts = [document["servers"][name] for document in documents if name in document["servers"]]
        servers[name] = _merged_server(parts, (spent or {}).get(name, (0, 0.0)))
    return StatsDocument(
        servers=servers, unknown_tool_calls=sum(document.get("unknown_tool_calls", 0) for document in documents)
    )


def _merged_server(parts: Sequence[ServerFigures], spent: tuple[int, float]) -> ServerFigures:
    tools = dict.fromkeys(tool for part in parts for tool in part["tools"])
    # In decimal, as in budgets. The service's count is never lower, unless the server has no limits.
    usd = float(sum((Decimal(str(part["usd"])) for part in parts), Decimal(0)))
    return ServerFigures(
        restarts=sum(part["restarts"] for part in parts),
        calls=max(spent[0], sum(part["calls"] for part in parts)),
        usd=max(spent[1], usd),
        breaker_openings=sum(part["breaker_openings"] for part in parts),
        tools={tool: _merged_tool([part["tools"][tool] for part in parts if tool in part["tools"]]) for tool in tools},
    )


_SUMMED = ("calls", "ok", "policy_faults", "retries", "cached", "replayed", "missing", "shared", "truncated")


def _merged_tool(parts: Sequence[ToolFigures]) -> ToolFigures:
    figures = {
        **{name: sum(part.get(name, 0) for part in parts) for name in _SUMMED},
        "failures": dict(sorted(_summed(part["failures"] for part in parts).items())),
        "latency_ms": _merged_latency([part["latency_ms"] for part in parts if part["latency_ms"] is not None]),
    }
    return cast("ToolFigures", figures)


def _merged_latency(parts: Sequence[LatencyFigures]) -> LatencyFigures | None:
    if not parts:
        return None
    if not all("buckets" in part for part in parts):
        raise ValueError("cannot merge latencies without buckets, which files of older runs lack")
    return _latency_figures(_summed(part.get("buckets", {}) for part in parts), max(part["max"] for part in parts))


def _summed(counts: Iterable[Mapping[T, int]]) -> Counter[T]:
    total: Counter[T] = Counter()
    for each in counts:
        total.update(each)
    return total


def _latency_figures(buckets: Mapping[int, int], max_ms: float) -> LatencyFigures:
    ordered = dict(sorted(buckets.items()))
    p50, p95 = (min(_percentile_ms(ordered, percent), max_ms) for percent in (50, 95))
    return LatencyFigures(p50=p50, p95=p95, max=max_ms, buckets=ordered)


def _percentile_ms(ordered: Mapping[int, int], percent: int) -> float:
    """Return the nearest-rank percentile: the end of the first bucket that covers at least `percent` of all values."""
    reached = list(accumulate(ordered.values()))
    bucket = list(ordered)[bisect_left(reached, math.ceil(percent * reached[-1] / 100))]
    return round(math.exp(bucket / _BUCKETS_PER_E) / 1000, 3)


def write_stats(folder: Path, document: StatsDocument) -> None:
    """Replace the statistics in a run's folder atomically."""
    write_file(folder / FILE_NAME, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def calls_in(documents: Iterable[StatsDocument]) -> dict[str, int]:
    """Return the number of calls to each server."""
    calls: Counter[str] = Counter()
    for document in documents:
        calls.update({name: server["calls"] for name, server in document["servers"].items()})
    return dict(calls)


def has_stats(folder: Path) -> bool:
    return (folder / FILE_NAME).exists()


def read_stats(folder: Path) -> StatsDocument:
    """Read the figures in a run's folder. Raises ConfigFileError if there are none."""
    path = folder / FILE_NAME
    try:
        return _DOCUMENT.validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(
            f"{path} cannot be read: {error}", fix="pass the folder of a run that has finished a step"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigFileError(
            f"{path} does not contain tool statistics: {place}: {first['msg']}", fix="pass the folder of a run"
        ) from error


_DOCUMENT = TypeAdapter(StatsDocument)
