"""What a call costs beyond the bare SDK: the whole pipeline against `mcp.Client.call_tool`.

Both sides speak to the same script, each in a server process of its own, from this one process. Within a run the sides
take turns in short stretches of the same number of calls and swap who goes first, so that other load on the machine
falls on both; the run's ratio is that of the two median stretches. A figure is the median ratio of five runs, over
stdio and over HTTP, one call after the other and 64 in flight. Every call has arguments of its own, so that none shares
another's answer. Where other work shares the processor, `spread` tells how far to trust a figure: two bare sides
compared in this way differ by as much.

The figures are taken with the garbage collector off, as `timeit` does. `with_gc` has the same ratios with it on, since
it falls on whichever side happens to allocate the last object; --ci leaves it out. `bare_us` and `added_us` are
microseconds a call on the clock, `bare_cpu_us` and `added_cpu_us` of this process's own processor time, which other
load disturbs less.

    python bench/tool_overhead.py [--ci]
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mcp import Client, StdioServerParameters

from mcprl.config import ServerSettings
from mcprl.processes import ChildProcess, free_port, search_path
from mcprl.records import ToolCall
from mcprl.tools import Toolbox
from mcprl.tools.session import port_answers
from servers.harness import HERE, http_spec, run_bench, say, stdio_spec

RUNS = 5
IN_FLIGHT = 64
WARM_UP_CALLS = 128
SPEED_BARS = {"worst": ("<=", 1.25)}


class Size(NamedTuple):
    """How long a run is, for each side."""

    stretches: int
    calls: int


Call = Callable[[dict[str, Any]], Awaitable[None]]
_numbers = itertools.count()


def new_arguments(count: int) -> list[dict[str, Any]]:
    fields = ["open", "high", "low", "close"]
    return [{"symbol": "ACME", "number": next(_numbers), "interval": "week", "fields": fields} for _ in range(count)]


@asynccontextmanager
async def bare_stdio(_folder: Path) -> AsyncGenerator[Client]:
    async with Client(StdioServerParameters(command=sys.executable, args=[str(HERE / "echo.py")])) as client:
        yield client


@asynccontextmanager
async def bare_http(folder: Path) -> AsyncGenerator[Client]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    argv = [sys.executable, str(HERE / "echo.py"), "--http", str(port)]
    child = await ChildProcess.start(argv, env={"PATH": search_path()}, log=folder / "bare.log")
    try:
        async with asyncio.timeout(30):
            while not await port_answers(url):  # noqa: ASYNC110 - a port sends no event
                await asyncio.sleep(0.05)
        async with Client(url) as client:
            yield client
    finally:
        await child.stop()


def bare_call(client: Client) -> Call:
    async def call(arguments: dict[str, Any]) -> None:
        result = await client.call_tool("quote", arguments)
        assert result.structured_content is not None
        assert result.structured_content["number"] == arguments["number"]

    return call


def our_call(lease: Any) -> Call:
    async def call(arguments: dict[str, Any]) -> None:
        observation = await lease.call(ToolCall(name="quote", arguments=arguments))
        assert observation.fault is None
        assert str(arguments["number"]) in observation.text

    return call


async def one_after_the_other(call: Call, arguments: list[dict[str, Any]]) -> None:
    for each in arguments:
        await call(each)


async def many_in_flight(call: Call, arguments: list[dict[str, Any]]) -> None:
    rest = iter(arguments)

    async def work() -> None:
        for each in rest:
            await call(each)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


Pattern = Callable[[Call, list[dict[str, Any]]], Awaitable[None]]


class Cost(NamedTuple):
    """Seconds of a stretch: on the clock, and of this process's own processor time."""

    wall_s: float
    cpu_s: float


async def timed(pattern: Pattern, call: Call, count: int) -> Cost:
    arguments = new_arguments(count)
    wall, cpu = time.perf_counter(), time.process_time()
    await pattern(call, arguments)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def median_call(stretches: list[Cost], calls: int) -> Cost:
    """A call of the median stretch, because a burst of other load is no cost of a call."""
    walls, cpus = zip(*stretches, strict=True)
    return Cost(statistics.median(walls) / calls, statistics.median(cpus) / calls)


async def run_pair(pattern: Pattern, bare: Call, ours: Call, size: Size) -> tuple[Cost, Cost]:
    """What a call costs on the bare and on our side."""
    stretches: dict[Call, list[Cost]] = {bare: [], ours: []}
    for turn in range(size.stretches):
        for call in (bare, ours) if turn % 2 else (ours, bare):
            stretches[call].append(await timed(pattern, call, size.calls))
    return median_call(stretches[bare], size.calls), median_call(stretches[ours], size.calls)


async def compare(pattern: Pattern, bare: Call, ours: Call, size: Size, *, with_gc: bool) -> dict[str, float]:
    pairs: list[tuple[Cost, Cost]] = []
    for _ in range(RUNS):
        gc.collect()
        if not with_gc:
            gc.disable()
        try:
            pairs.append(await run_pair(pattern, bare, ours, size))
        finally:
            gc.enable()
    ratios = [our.wall_s / sdk.wall_s for sdk, our in pairs]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "bare_us": round(statistics.median(sdk.wall_s for sdk, _ in pairs) * 1e6),
        "added_us": round(statistics.median(our.wall_s - sdk.wall_s for sdk, our in pairs) * 1e6),
        "bare_cpu_us": round(statistics.median(sdk.cpu_s for sdk, _ in pairs) * 1e6),
        "added_cpu_us": round(statistics.median(our.cpu_s - sdk.cpu_s for sdk, our in pairs) * 1e6),
    }


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    settings = ServerSettings()
    sides = {
        "stdio": (bare_stdio, stdio_spec("echo", "echo.py", settings=settings)),
        "http": (bare_http, http_spec("echo", "echo.py", settings=settings)),
    }
    # 64 in flight need stretches of several times as many: the first and the last of them have less company.
    patterns: dict[str, tuple[Pattern, Size]] = {
        "sequential": (one_after_the_other, Size(stretches=20 if ci else 60, calls=5)),
        "64": (many_in_flight, Size(stretches=4 if ci else 8, calls=128)),
    }
    results: dict[str, dict[str, float]] = {}
    collected: dict[str, float] = {}
    for transport, (open_bare, spec) in sides.items():
        async with AsyncExitStack() as stack:
            bare = bare_call(await stack.enter_async_context(open_bare(folder)))
            toolbox = await stack.enter_async_context(Toolbox([spec], log_dir=folder))
            ours = our_call(await stack.enter_async_context(toolbox.lease(None)))
            for call in (bare, ours):
                await timed(many_in_flight, call, WARM_UP_CALLS)
                await timed(one_after_the_other, call, WARM_UP_CALLS // 4)
            for name, (pattern, size) in patterns.items():
                key = f"{transport}_{name}"
                results[key] = await compare(pattern, bare, ours, size, with_gc=False)
                say(f"{key}: {results[key]}")
                if not ci:
                    half = size._replace(stretches=size.stretches // 2)
                    collected[key] = (await compare(pattern, bare, ours, half, with_gc=True))["ratio"]
                    say(f"{key} with gc: {collected[key]}")
    ratios = {key: result["ratio"] for key, result in results.items()}
    details = ("bare_us", "added_us", "bare_cpu_us", "added_cpu_us")
    return {
        **ratios,
        "worst": max(ratios.values()),
        "with_gc": collected,
        "spread": {key: [result["lowest"], result["highest"]] for key, result in results.items()},
        **{detail: {key: result[detail] for key, result in results.items()} for detail in details},
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, {}, speed=SPEED_BARS))
