"""Meters on what a run spends on being seen, step by step, and the run they are read from."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from mcprl.runs.folder import RunFolder
from mcprl.runs.journal import EpisodeJournal
from mcprl.tracking.delivery import Delivery, Trackers
from mcprl.training import loop
from mcprl.training.run import open_run

__all__ = ["Spent", "StepMeter", "run_metered"]

# What writes a run's own files, and what tells its trackers. Of the latter, the first two are in the run's event loop,
# the last is in the thread of a tracker; what the trackers' processes do costs the run no time.
_JOURNALING: tuple[tuple[Any, str], ...] = (
    (RunFolder, "record_step"),  # trajectories, tokens, timeline, verdicts, metrics
    (EpisodeJournal, "_write"),
    (loop, "write_stats"),
)
_TRACKING: tuple[tuple[Any, str], ...] = (
    (Trackers, "episode_finished"),
    (Trackers, "step_finished"),
    (Delivery, "_pickled"),
)


@dataclass(slots=True)
class Spent:
    """Seconds of a step: of a clock, and of a processor."""

    clock_s: float = 0.0
    processor_s: float = 0.0

    def add(self, clock_s: float, processor_s: float) -> None:
        self.clock_s += clock_s
        self.processor_s += processor_s


@dataclass(slots=True)
class StepMeter:
    """What one step took, and what of it went into journaling and tracking."""

    whole: Spent = field(default_factory=Spent)
    journaling: Spent = field(default_factory=Spent)
    tracking: Spent = field(default_factory=Spent)


class _Meters:
    """Closes a step's meter when the step is done; what comes later, of the same step too, counts for the next."""

    def __init__(self) -> None:
        self.steps: list[StepMeter] = []
        self.open = StepMeter()
        self._processor_s = time.process_time()

    def stage(self, text: str) -> None: ...

    def episode_finished(self, step: int, outcome: object) -> None: ...

    def step_finished(self, step: int, metrics: Any, verdicts: object) -> None:
        now = time.process_time()
        self.open.whole.add(metrics["step_s"], now - self._processor_s)
        self._processor_s = now
        self.steps.append(self.open)
        self.open = StepMeter()


def _timed(work: Callable[..., Any], spend: Callable[[float, float], None]) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        clock, processor = time.perf_counter(), time.thread_time()
        try:
            return work(*args, **options)
        finally:
            spend(time.perf_counter() - clock, time.thread_time() - processor)

    return timed


@contextmanager
def _metered(meters: _Meters) -> Generator[None]:
    before: list[tuple[Any, str, Any]] = []
    for kind, places in (("journaling", _JOURNALING), ("tracking", _TRACKING)):
        for owner, name in places:
            work = getattr(owner, name)
            before.append((owner, name, work))
            setattr(owner, name, _timed(work, lambda *spent, kind=kind: getattr(meters.open, kind).add(*spent)))
    try:
        yield
    finally:
        for owner, name, work in before:
            setattr(owner, name, work)


async def run_metered(config: RunConfig) -> tuple[list[StepMeter], Path]:
    """Train as `mcprl train` does, its trackers included; the meters of all steps, and the run's folder."""
    meters = _Meters()
    with _metered(meters):
        async with Trackers(config, meters) as trackers, open_run(config, trackers) as run:
            await trackers.start(run.folder.path)
            summary = await loop.train(run)
            trackers.run_ended(summary.as_dict())
    return meters.steps, run.folder.path
