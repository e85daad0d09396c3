"""Sends the changes of a run to browsers, soon after its files change.

Each run with listeners has one task that polls its files a few times per second. A poll without changes takes a few
system calls. Changes are read once and sent to all listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mcprl.errors import McprlError
from mcprl_dashboard.answers import encoded
from mcprl_dashboard.episode_index import LiveEpisodes
from mcprl_dashboard.line_files import Cursor, JsonLines, file_signature, step_files
from mcprl_dashboard.open_run import OpenRun, RunList

TOOL_FIGURES_FILE = "tool_stats.json"
_BUCKET_GROWTH = 1.01


def read_tool_figures(run: Path, settings: Any) -> list[dict[str, Any]]:
    """Return one entry per server. `settings` is servers.settings of the run, which has the budgets."""
    try:
        document: object = json.loads((run / TOOL_FIGURES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []  # no step has ended yet, or the file was edited
    servers = _mapping(_mapping(document).get("servers"))
    return [_server(name, _mapping(found), _mapping(_mapping(settings).get(name))) for name, found in servers.items()]


def _server(name: str, found: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    tools = {tool: _mapping(figures) for tool, figures in _mapping(found.get("tools")).items()}
    calls = sum(_number(tool, "calls") for tool in tools.values())
    errors = sum(_errors(tool) for tool in tools.values())
    cached = sum(_number(tool, "cached") for tool in tools.values())
    buckets: Counter[int] = Counter()
    for tool in tools.values():
        buckets.update(_buckets(tool))
    return {
        "server": name,
        "calls": calls,
        "errors": errors,
        "error_rate": errors / calls if calls else 0.0,
        "cache_rate": cached / calls if calls else 0.0,
        "p50_s": _percentile_s(buckets, 50),
        "p95_s": _percentile_s(buckets, 95),
        "restarts": _number(found, "restarts"),
        "budget": _budget(found, _mapping(settings.get("budget"))),
        "tools": [_tool(tool, figures) for tool, figures in tools.items()],
    }


def _tool(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    calls, errors = _number(figures, "calls"), _errors(figures)
    latency = _mapping(figures.get("latency_ms"))
    return {
        "tool": name,
        "calls": calls,
        "errors": errors,
        "error_rate": errors / calls if calls else 0.0,
        "cache_rate": _number(figures, "cached") / calls if calls else 0.0,
        "p50_s": _number(latency, "p50") / 1000 if latency else None,
        "p95_s": _number(latency, "p95") / 1000 if latency else None,
    }


def _errors(figures: Mapping[str, Any]) -> float:
    failures = _mapping(figures.get("failures"))
    return _number(figures, "policy_faults") + sum(_number(failures, code) for code in failures)


def _budget(found: Mapping[str, Any], budget: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the server's budget of calls or of money, whichever is closer to its limit."""
    limits = {"calls": budget.get("calls"), "usd": budget.get("usd")}
    parts: list[dict[str, Any]] = [
        {"unit": unit, "used": _number(found, unit), "limit": limit}
        for unit, limit in limits.items()
        if isinstance(limit, int | float)
    ]
    return max(parts, key=lambda part: part["used"] / part["limit"] if part["limit"] else math.inf, default=None)


def _buckets(figures: Mapping[str, Any]) -> dict[int, int]:
    """Return the number of calls by latency bucket. Bucket n ends at 1.01ⁿ microseconds."""
    found = _mapping(_mapping(figures.get("latency_ms")).get("buckets"))
    return {int(name): count for name, count in found.items() if name.lstrip("-").isdigit() and isinstance(count, int)}


def _percentile_s(buckets: Mapping[int, int], percent: int) -> float | None:
    """Return the nearest-rank percentile in seconds."""
    wanted, reached = math.ceil(sum(buckets.values()) * percent / 100), 0
    for bucket in sorted(buckets):
        reached += buckets[bucket]
        if reached >= wanted:
            return _BUCKET_GROWTH ** min(bucket, 5000) / 1e6
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _number(figures: Mapping[str, Any], name: str) -> float:
    value = figures.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


_LOOK_S = 0.3
_KEEP_ALIVE_S = 15.0
_MAX_WAITING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event for a browser. Event(name="metrics", data={"steps": [{"step": 3, "reward": 0.25}]})"""

    name: str
    data: dict[str, Any]

    def encoded(self) -> bytes:
        return b"event: " + self.name.encode() + b"\ndata: " + encoded(self.data) + b"\n\n"


Look = Callable[[], list[Event]]
"""Returns the events since the last call. It is called in a thread, never concurrently."""


class Broadcast:
    """Polls while anyone listens, and sends events to all listeners."""

    def __init__(self, make_look: Callable[[], Look], *, every_s: float = _LOOK_S) -> None:
        self._make_look = make_look
        self._every_s = every_s
        self._listeners: set[asyncio.Queue[Event]] = set()
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[asyncio.Queue[Event]]:
        """Yield a queue that receives all later events."""
        queue: asyncio.Queue[Event] = asyncio.Queue(_MAX_WAITING)
        if not self._listeners:
            look = await asyncio.to_thread(self._make_look)
            if not self._listeners:  # no other listener has come in the meantime
                self._task = asyncio.create_task(self._watch(look))
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self, look: Look) -> None:
        lost = False
        while True:
            try:
                events = await asyncio.to_thread(look)
                lost = False
            except (McprlError, OSError) as error:  # the run was removed, or the disk is not mounted; it may return
                events = [] if lost else [Event(name="lost", data={"what": str(error)})]
                lost = True
            for event in events:
                for queue in tuple(self._listeners):
                    _tell(queue, event)
            await asyncio.sleep(self._every_s)


def _tell(queue: asyncio.Queue[Event], event: Event) -> None:
    """Send an event. A listener that is too slow gets `reset` and has to load everything again."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = Event(name="reset", data={})
    queue.put_nowait(event)


async def event_stream(
    hello: Event | None, queue: asyncio.Queue[Event], closing: asyncio.Event
) -> AsyncGenerator[bytes]:
    """Yield the bytes of the event stream until the server closes."""
    yield b"retry: 1000\n\n"
    if hello is not None:
        yield hello.encoded()
    closed = asyncio.create_task(closing.wait())
    heard = asyncio.create_task(queue.get())
    try:
        while not closed.done():
            await asyncio.wait((heard, closed), timeout=_KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if heard.done():
                event, heard = heard.result(), asyncio.create_task(queue.get())
                yield event.encoded()
            else:
                yield b": still here\n\n"
    finally:
        heard.cancel()
        closed.cancel()


@dataclass(slots=True)
class _Followed:
    """A file with one record per line, and the names of its event and its entries."""

    event: str
    entries_name: str
    file: JsonLines
    cursor: Cursor


class RunLook:
    """Finds the changes of one run since this object was created."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._followed = [
            _Followed("metrics", "steps", run.metrics, run.metrics.now()),
            _Followed("health", "verdicts", run.health, run.health.now()),
            _Followed("timeline", "spans", run.timeline, run.timeline.now()),
        ]
        self._live = LiveEpisodes(run.path)
        self._live.refresh(self._recorded())
        self._finished = self._live.finished()
        self._tools = file_signature(run.path / TOOL_FIGURES_FILE)
        self._state = self.state()

    def state(self) -> dict[str, Any]:
        run = self._run.status()
        return {"state": run.state.value, "why": run.why or None, "step": run.steps_done}

    def __call__(self) -> list[Event]:
        events: list[Event] = []
        reset = False
        for followed in self._followed:
            news = followed.file.since(followed.cursor)
            followed.cursor = news.cursor
            reset = reset or news.reset
            if news.entries and not news.reset:
                events.append(Event(name=followed.event, data={followed.entries_name: news.entries}))
        if reset:
            events.append(Event(name="reset", data={}))
        self._live.refresh(self._recorded())
        if (finished := self._live.finished()) != self._finished:
            self._finished = finished
            events.append(Event(name="episodes", data={"live": self._standing()}))
        if (tools := file_signature(self._run.path / TOOL_FIGURES_FILE)) != self._tools:
            self._tools = tools
            figures = read_tool_figures(self._run.path, self._run.setting("servers", "settings"))
            events.append(Event(name="tools", data={"servers": figures}))
        if (state := self.state()) != self._state:
            self._state = state
            events.append(Event(name="state", data=state))
        return events

    def _recorded(self) -> set[int]:
        return set(step_files(self._run.path / "trajectories", "parquet"))

    def _standing(self) -> dict[str, Any] | None:
        """Return the state of the first unfinished step. With a pipeline there may be several."""
        if not self._finished:
            return None
        step, finished = next(iter(self._finished.items()))
        return {"step": step, "finished": finished, "of": self._run.episodes_per_step}


class ListLook:
    """Sends the list of runs when something in it changes."""

    def __init__(self, runs: RunList) -> None:
        self._runs = runs
        self._last = runs.cards()

    def __call__(self) -> list[Event]:
        cards = self._runs.cards()
        if cards == self._last:
            return []
        self._last = cards
        return [Event(name="runs", data={"runs": cards})]
