"""Tells browsers what happens in a run, within a moment of its files changing.

A run that somebody listens to has one task that looks at its files a few times a second. A look is a few calls of the
system where nothing changed; what did change is read once and sent to all who listen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from mcprl.dashboard.answers import encoded
from mcprl.dashboard.line_files import Cursor, LineFile
from mcprl.dashboard.live_episodes import LiveEpisodes
from mcprl.dashboard.open_run import OpenRun, file_signature
from mcprl.dashboard.run_list import RunList
from mcprl.dashboard.tool_figures import TOOL_FIGURES_FILE, read_tool_figures
from mcprl.errors import McprlError

__all__ = ["Broadcast", "Event", "ListLook", "RunLook", "event_stream"]

_LOOK_S = 0.3
_KEEP_ALIVE_S = 15.0
_MAX_WAITING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something to tell a browser. Event(name="metrics", data={"steps": [{"step": 3, "reward": 0.25}]})"""

    name: str
    data: dict[str, Any]

    def encoded(self) -> bytes:
        return b"event: " + self.name.encode() + b"\ndata: " + encoded(self.data) + b"\n\n"


Look = Callable[[], list[Event]]
"""Finds out what is new since it was last called. It is called in a thread, never twice at once."""


class Broadcast:
    """Looks again and again while anybody listens, and tells all of them."""

    def __init__(self, make_look: Callable[[], Look], *, every_s: float = _LOOK_S) -> None:
        self._make_look = make_look
        self._every_s = every_s
        self._listeners: set[asyncio.Queue[Event]] = set()
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[asyncio.Queue[Event]]:
        """A queue of events from now on; whoever listens hears all of what changes after this was entered."""
        queue: asyncio.Queue[Event] = asyncio.Queue(_MAX_WAITING)
        if not self._listeners:
            look = await asyncio.to_thread(self._make_look)
            if not self._listeners:  # nobody else began meanwhile
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
            except (McprlError, OSError) as error:  # the run was removed, or the disk is away; it may come back
                events = [] if lost else [Event(name="lost", data={"what": str(error)})]
                lost = True
            for event in events:
                for queue in tuple(self._listeners):
                    _tell(queue, event)
            await asyncio.sleep(self._every_s)


def _tell(queue: asyncio.Queue[Event], event: Event) -> None:
    """One who is too slow to hear everything is told to ask for everything anew."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        event = Event(name="reset", data={})
    queue.put_nowait(event)


async def event_stream(
    hello: Event | None, queue: asyncio.Queue[Event], closing: asyncio.Event
) -> AsyncGenerator[bytes]:
    """What goes over the wire, until the server closes."""
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
    """A file of lines and what its entries are called in an event."""

    event: str
    entries_name: str
    file: LineFile
    cursor: Cursor


class RunLook:
    """What is new in one run. What there is when it is made is not new."""

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
        return {"state": run.state.value, "step": run.steps_done}

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
        folder = self._run.path / "trajectories"
        names = (path.stem.removeprefix("step-") for path in folder.glob("step-*.parquet"))
        return {int(name) for name in names if name.isdigit()}

    def _standing(self) -> dict[str, Any] | None:
        """The first step under way; with a pipeline there may be several."""
        if not self._finished:
            return None
        step, finished = next(iter(self._finished.items()))
        return {"step": step, "finished": finished, "of": self._run.episodes_per_step}


class ListLook:
    """The list of runs, whenever something in it is another."""

    def __init__(self, runs: RunList) -> None:
        self._runs = runs
        self._last = runs.cards()

    def __call__(self) -> list[Event]:
        cards = self._runs.cards()
        if cards == self._last:
            return []
        self._last = cards
        return [Event(name="runs", data={"runs": cards})]
