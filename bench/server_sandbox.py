"""What the sandbox costs a server: a call, and a start, in the sandbox and without it.

Both sides run the same script, each in a process of its own, and are called from this one process. They take turns in
short stretches of the same number of calls and swap who goes first, so that other load on the machine falls on both. A
ratio is that of the two median stretches, the figure the median of five runs. Starts take turns, too.

  ratio               time of a call in the sandbox by that of a plain one; lowest and highest of the runs beside it
  plain_us            a plain call
  plain_start_ms      until a plain server has listed its tools; median
  start_ms            the same in the sandbox
  added_start_ms      median of the differences between neighbouring starts

    python bench/server_sandbox.py [--ci]
"""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from mcprl.config import SandboxSettings, ServerSettings
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec, Toolbox, ToolLease
from servers.harness import HERE, run_bench, say, stdio_spec

RUNS = 5
CALLS = 5
SIDES = ("plain", "sandboxed")
NUMBERS = count()


def spec(side: str) -> ServerSpec:
    sandbox = SandboxSettings(read=(HERE,)) if side == "sandboxed" else None
    return stdio_spec("echo", "echo.py", settings=ServerSettings(sandbox=sandbox))


async def stretch_s(lease: ToolLease) -> float:
    """Calls one after the other, each with arguments of its own."""
    started = time.perf_counter()
    for _ in range(CALLS):
        observation = await lease.call(ToolCall(name="quote", arguments={"symbol": "CLNR", "number": next(NUMBERS)}))
        assert observation.fault is None, observation.text
    return time.perf_counter() - started


async def run_pair(leases: dict[str, ToolLease], stretches: int) -> dict[str, float]:
    """The median stretch of each side."""
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for turn in range(stretches):
        for side in SIDES if turn % 2 else reversed(SIDES):
            times[side].append(await stretch_s(leases[side]))
    return {side: statistics.median(each) for side, each in times.items()}


async def start_s(side: str, folder: Path) -> float:
    started = time.perf_counter()
    async with Toolbox([spec(side)], log_dir=folder):
        return time.perf_counter() - started


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    starts = {side: [await start_s(side, folder)] for side in SIDES}  # the first ones fill the disk's cache
    for turn in range(3 if ci else 10):
        for side in SIDES if turn % 2 else reversed(SIDES):
            starts[side].append(await start_s(side, folder))
    plain, sandboxed = (starts[side][1:] for side in SIDES)
    say(f"starts: {starts}")
    async with AsyncExitStack() as stack:
        leases: dict[str, ToolLease] = {}
        for side in SIDES:
            toolbox = await stack.enter_async_context(Toolbox([spec(side)], log_dir=folder))
            leases[side] = await stack.enter_async_context(toolbox.lease(None))
        await run_pair(leases, 10)
        pairs = [await run_pair(leases, 20 if ci else 60) for _ in range(RUNS)]
    ratios = [pair["sandboxed"] / pair["plain"] for pair in pairs]
    say(f"ratios: {ratios}")
    return {
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "plain_us": round(statistics.median(pair["plain"] for pair in pairs) / CALLS * 1e6),
        "plain_start_ms": round(statistics.median(plain) * 1e3),
        "start_ms": round(statistics.median(sandboxed) * 1e3),
        "added_start_ms": round(statistics.median(b - a for a, b in zip(plain, sandboxed, strict=True)) * 1e3),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, {}, speed={"ratio": ("<=", 1.05)}))
