"""Calls that never answer: each ends at its deadline, alone, and nothing of it stays behind.

10,000 calls with a deadline of two seconds, a tenth of which hang on the server; once over stdio and once over HTTP.
The others take half a second to one second, so that at 100 calls a second there are about 90 in flight while the
machine has time to spare. In the middle 100 more are made at one moment, and all of them hang. Half of the calls are of
a read-only tool, so a deadline must hold over repeated attempts as well. `latest_s` is the longest time from making any
call to its outcome. A hanging call must raise CallDeadlineError, and the others must answer: `wrong_outcomes` counts
the rest.

What is left is compared while the servers are idle with what there was before the calls, and after closing with what
there was before opening. While idle an HTTP client keeps connections for the next calls: `descriptors_idle` says how
many, and only over stdio must there be none. `loop_lag_s` is the longest that this process itself was late for a timer:
a part of `latest_s` that is no server's.

    python bench/hangs.py [--ci]
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mcprl.config import ServerSettings
from mcprl.errors import CallDeadlineError, InfrastructureError
from mcprl.records import ToolCall
from mcprl.tools import Toolbox, calls
from servers.harness import http_spec, percentile, run_bench, say, stdio_spec

DEADLINE_S = 2.0
CALLS_PER_S = 100
BURST = 100
WORK_MS = (500, 1000)
SHARE_HANGING = 0.1
WARM_UP_CALLS = 100
SETTLE_S = 5.0
SEED = 11
BARS = {
    "wrong_outcomes": ("==", 0),
    "leaked_tasks": ("==", 0),
    "leaked_descriptors": ("==", 0),
    "leaked_processes": ("==", 0),
}
SPEED_BARS = {"latest_s": ("<=", 2.5)}


@dataclass
class Outcomes:
    """What became of the calls over one transport."""

    seconds: list[float] = field(default_factory=list[float])
    deadlines: int = 0
    most_in_flight: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Belongings:
    """What this process holds."""

    tasks: int
    descriptors: int
    processes: int

    @classmethod
    def now(cls) -> Belongings:
        gc.collect()
        return cls(
            tasks=len(asyncio.all_tasks()),
            descriptors=len(os.listdir("/proc/self/fd")),
            processes=len(psutil.Process().children(recursive=True)),
        )

    def beyond(self, before: Belongings) -> dict[str, int]:
        return {name: getattr(self, name) - getattr(before, name) for name in ("tasks", "descriptors", "processes")}


async def settled(before: Belongings) -> dict[str, int]:
    """What is held beyond `before`, once that has stopped shrinking: cancelled calls take a moment to unwind."""
    give_up = time.monotonic() + SETTLE_S
    while (  # noqa: ASYNC110 - tasks end without an event
        (extra := Belongings.now().beyond(before))["tasks"] > 0 and time.monotonic() < give_up
    ):
        await asyncio.sleep(0.05)
    return extra


async def make_call(lease: Any, arguments: dict[str, Any], outcomes: Outcomes) -> None:
    number, hang = arguments["number"], arguments["hang"]
    made = time.perf_counter()
    try:
        observation = await lease.call(ToolCall(name="look" if number % 2 else "act", arguments=arguments))
        right = not hang and observation.text == str(number)
        said = observation.text
    except CallDeadlineError as error:
        outcomes.deadlines += 1
        right, said = hang, str(error)
    except InfrastructureError as error:
        right, said = False, str(error)
    outcomes.seconds.append(time.perf_counter() - made)
    if not right:
        outcomes.wrong.append(f"call {number} (hang={hang}): {said}")


async def make_calls(lease: Any, count: int, outcomes: Outcomes) -> None:
    """Make `count` calls at an even pace, whatever becomes of those before, and the burst in the middle."""
    draw = random.Random(SEED)
    hanging = set(draw.sample(range(count), int(count * SHARE_HANGING)))
    started = time.monotonic()
    made = 0
    async with asyncio.TaskGroup() as calls:

        def make(number: int, *, hang: bool) -> None:
            nonlocal made
            arguments = {"number": number, "work_ms": draw.randint(*WORK_MS), "hang": hang}
            calls.create_task(make_call(lease, arguments, outcomes))
            made += 1
            outcomes.most_in_flight = max(outcomes.most_in_flight, made - len(outcomes.seconds))

        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / CALLS_PER_S - time.monotonic()))
            make(number, hang=number in hanging)
            if number == count // 2:
                for extra in range(BURST):
                    make(count + extra, hang=True)


async def watch_lag(lags: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.01)
        lags.append(time.perf_counter() - before - 0.01)


async def measure_transport(transport: str, count: int, folder: Path) -> dict[str, Any]:
    # A server whose every tenth call hangs has streaks of failures; resting it would test the breaker instead.
    calls.FAILURES = 10**6
    settings = ServerSettings(call_deadline_s=DEADLINE_S)
    make_spec = stdio_spec if transport == "stdio" else http_spec
    spec = make_spec("hanging", "hanging.py", settings=settings)
    # The first server of a process brings things that stay: the guard of all children, a pool of threads.
    async with Toolbox([spec], log_dir=folder / transport):
        pass
    before = Belongings.now()
    outcomes, lags = Outcomes(), list[float]()
    async with Toolbox([spec], log_dir=folder / transport) as toolbox:
        async with toolbox.lease(None) as lease:
            for number in range(WARM_UP_CALLS):
                await lease.call(ToolCall(name="look", arguments={"number": number, "work_ms": 0, "hang": False}))
            before_calls = Belongings.now()
            lag_watch = asyncio.create_task(watch_lag(lags))
            started = time.perf_counter()
            await make_calls(lease, count, outcomes)
            elapsed_s = time.perf_counter() - started
            lag_watch.cancel()
            idle = await settled(before_calls)
        restarts = toolbox.restarts
    after = await settled(before)
    for sentence in outcomes.wrong[:5]:
        say(f"wrong: {sentence}")
    figures = {
        "calls": len(outcomes.seconds),
        "most_in_flight": outcomes.most_in_flight,
        "deadlines": outcomes.deadlines,
        "wrong_outcomes": len(outcomes.wrong),
        "latest_s": round(max(outcomes.seconds), 3),
        "median_s": round(percentile(outcomes.seconds, 50), 3),
        "elapsed_s": round(elapsed_s, 1),
        "loop_lag_s": round(max(lags), 3),
        "restarts": restarts,
        **{f"{name}_idle": extra for name, extra in idle.items()},
        **after,
    }
    say(f"{transport}: {figures}")
    return figures


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    count = 1_000 if ci else 10_000
    by_transport = {name: await measure_transport(name, count, folder) for name in ("stdio", "http")}
    runs = list(by_transport.values())
    return {
        "latest_s": max(run["latest_s"] for run in runs),
        "wrong_outcomes": sum(run["wrong_outcomes"] for run in runs),
        "leaked_tasks": max(max(run["tasks"], run["tasks_idle"]) for run in runs),
        "leaked_descriptors": max(max(run["descriptors"] for run in runs), by_transport["stdio"]["descriptors_idle"]),
        "leaked_processes": max(max(run["processes"], run["processes_idle"]) for run in runs),
        **by_transport,
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
