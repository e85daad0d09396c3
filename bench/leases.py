"""A thousand episodes at once, each with a server of its own in this process.

100, 250, 500 and 1,000 leases are opened together, each makes one call, and all are held until the last is open; each
size three times in a fresh process, so that one size's memory is not reused by the next. `ms_a_lease` is the time from
asking for the first lease to the last answer, divided by the leases; `kib_a_lease` the growth of resident memory.

Growth is linear where a lease costs the same at any size: `time_ratio` and `memory_ratio` compare a lease among 1,000
with one among 250, `time_r2` and `memory_r2` say how well a straight line fits the totals.

    python bench/leases.py [--ci]          (--ci: each size once)
    python bench/leases.py --size 250      (one size, once, in this process)
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from mcp.server.mcpserver import MCPServer

from mcprl.config import ServerSettings
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec, Toolbox
from servers.harness import run_bench, say

SIZES = (100, 250, 500, 1_000)
WARM_UP_LEASES = 20
BARS = {"shared_servers": ("==", 0)}
SPEED_BARS = {"time_ratio": ("<=", 1.5), "memory_ratio": ("<=", 1.5)}


def make_board() -> MCPServer:
    """A server with a state: the moves made on it so far."""
    server = MCPServer("board", log_level="WARNING")
    moves: list[str] = []

    def move(square: str) -> str:
        """Make a move; the answer is all moves so far."""
        moves.append(square)
        return " ".join(moves)

    def undo() -> str:
        """Take the last move back."""
        moves.pop()
        return " ".join(moves)

    server.add_tool(move)
    server.add_tool(undo)
    return server


async def hold_lease(toolbox: Toolbox, number: int, opened: asyncio.Barrier, measured: asyncio.Event) -> str:
    async with toolbox.lease(None) as lease:
        observation = await lease.call(ToolCall(name="move", arguments={"square": str(number)}))
        await opened.wait()
        await measured.wait()
    return observation.text


async def hold_leases(toolbox: Toolbox, count: int) -> tuple[float, float, int]:
    """Seconds and bytes for `count` leases at once, and how many saw another's moves."""
    opened, measured = asyncio.Barrier(count + 1), asyncio.Event()
    gc.collect()
    bytes_before = psutil.Process().memory_info().rss
    started = time.perf_counter()
    holders = [asyncio.create_task(hold_lease(toolbox, number, opened, measured)) for number in range(count)]
    all_open = asyncio.create_task(opened.wait())
    # A lease that fails must end the bench: the others would wait for it at the barrier.
    await asyncio.wait({*holders, all_open}, return_when=asyncio.FIRST_COMPLETED)
    for failed in [holder for holder in holders if holder.done()]:
        failed.result()
    seconds = time.perf_counter() - started
    gc.collect()
    size_bytes = psutil.Process().memory_info().rss - bytes_before
    measured.set()
    texts = await asyncio.gather(*holders)
    return seconds, size_bytes, sum(text != str(number) for number, text in enumerate(texts))


async def measure_size(count: int, folder: Path) -> dict[str, float]:
    spec = ServerSpec(name="board", make=make_board, settings=ServerSettings(isolation="per_episode"))
    async with Toolbox([spec], log_dir=folder) as toolbox:
        await hold_leases(toolbox, WARM_UP_LEASES)
        seconds, size_bytes, shared = await hold_leases(toolbox, count)
    return {"ms": seconds * 1e3, "kib": size_bytes / 1024, "shared": shared}


async def in_fresh_process(count: int) -> dict[str, float]:
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--size", str(count), stdout=subprocess.PIPE)
    output, _ = await child.communicate()
    if child.returncode:
        sys.exit(f"the process with {count} leases ended with exit status {child.returncode}")
    return json.loads(output.splitlines()[-1])


def straightness(values: list[float]) -> float:
    """Share of the variance that a straight line over the sizes explains."""
    return statistics.correlation(SIZES, values) ** 2


async def measure(ci: bool, _folder: Path) -> dict[str, Any]:
    times_ms, sizes_kib, shared = list[float](), list[float](), 0.0
    for count in SIZES:
        runs = [await in_fresh_process(count) for _ in range(1 if ci else 3)]
        times_ms.append(statistics.median(run["ms"] for run in runs))
        sizes_kib.append(statistics.median(run["kib"] for run in runs))
        shared += sum(run["shared"] for run in runs)
        say(f"{count} leases: {times_ms[-1] / count:.2f} ms and {sizes_kib[-1] / count:.0f} KiB each")
    ms_a_lease = {count: value / count for count, value in zip(SIZES, times_ms, strict=True)}
    kib_a_lease = {count: value / count for count, value in zip(SIZES, sizes_kib, strict=True)}
    return {
        "time_ratio": round(ms_a_lease[1_000] / ms_a_lease[250], 3),
        "memory_ratio": round(kib_a_lease[1_000] / kib_a_lease[250], 3),
        "time_r2": round(straightness(times_ms), 4),
        "memory_r2": round(straightness(sizes_kib), 4),
        "shared_servers": int(shared),
        "ms_a_lease": {str(count): round(value, 2) for count, value in ms_a_lease.items()},
        "kib_a_lease": {str(count): round(value, 1) for count, value in kib_a_lease.items()},
        "seconds_for_1000": round(times_ms[-1] / 1e3, 2),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--size"]:
        with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
            print(json.dumps(asyncio.run(measure_size(int(sys.argv[2]), Path(folder)))))
    else:
        sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
