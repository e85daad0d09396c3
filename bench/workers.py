"""What Ray workers carry: real actors with real MCP servers over stdio, and a scripted sampler in this process.

Every turn of an episode is one call of a tool that waits and takes no processor time. `--kills`: two simulated nodes,
four workers, one of which is killed (SIGKILL) every five seconds; each episode must come back once, and be the same as
where this process plays it. `--scaling`: the same episodes through 1, 2 and 4 workers, each of which plays 8 at a time.
`--rate`: a limit on a server that all four workers call, by the clock of the servers: the most calls in any span of a
period, and the rate that was reached. `--thousand`: that many episodes at once through four workers, with a tool that
takes a second: what it takes of processor and memory, here and in the workers with their servers. Without any of these,
all of them.

    python bench/workers.py [--kills] [--scaling] [--rate] [--thousand] [--ci]
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from mcprl.episodes import Collector, RunsEpisodes
from mcprl.records import LostEpisode, Task, Trajectory
from servers.harness import exit_status, missed_bars, say
from working.killing import killed, two_nodes
from working.measuring import Measured, measured, relayed_bytes
from working.playing import arrivals, by_name, make_config, make_tasks, open_local, open_workers

__all__ = ["Measured", "play"]

KILL_EVERY_S = 5.0
AT_ONCE_EACH = 8
BARS = {
    "kills_lost": ("==", 0),
    "kills_double": ("==", 0),
    "kills_different": ("==", 0),
    "rate_most_in_a_period": ("<=", 1.02),
    "thousand_unfinished": ("==", 0),
}
SPEED_BARS = {"scaling_least": (">=", 1.8), "rate_reached": (">=", 0.98)}


async def collect(
    runner: RunsEpisodes, config: RunConfig, tasks: list[Task]
) -> tuple[list[Trajectory], list[Trajectory | LostEpisode]]:
    """The episodes of whole groups, and all that was heard of."""
    heard: list[Trajectory | LostEpisode] = []
    groups = await Collector(runner, config.episodes).collect(tasks, 0, heard.append)
    return [trajectory for group in groups for trajectory in group.trajectories], heard


async def play(*, episodes: int, workers: int, tool_s: float, turns: int) -> Measured:
    """Play so many episodes at once through so many workers, each with `turns` calls of a tool that takes `tool_s`.

    A first few episodes are played before, and not measured: what is loaded with the first use is no cost of it.
    """
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as name:
        folder = Path(name)
        config = make_config(folder, workers=workers, at_once=episodes, tool_s=tool_s)
        async with open_workers(config, folder / "logs") as runner:
            say(f"{workers} workers run")
            await collect(runner, config, make_tasks(4 * workers, 1))
            tasks = make_tasks(episodes, turns)
            started = time.perf_counter()
            async with measured(lambda: runner.pids) as usage:
                played, _ = await collect(runner, config, tasks)
                seconds = time.perf_counter() - started
            return Measured(
                seconds=seconds,
                **asdict(usage),
                relayed_bytes=relayed_bytes(tasks, played),
                calls=sum(len(turn.observations) for each in played for turn in each.turns),
                tokens=sum(len(each.token_ids) for each in played),
            )


async def measure_kills(ci: bool, folder: Path) -> dict[str, Any]:
    tasks = make_tasks(160 if ci else 960, 4)
    async with AsyncExitStack() as stack:
        stack.enter_context(two_nodes())
        config = make_config(folder, workers=4, at_once=16, tool_s=0.25)
        async with open_local(config, folder / "local") as runner:
            expected, _ = await collect(runner, config, tasks)
        workers = await stack.enter_async_context(open_workers(config, folder / "logs"))
        say("4 workers run on 2 nodes")
        started = time.perf_counter()
        async with killed(workers, every_s=KILL_EVERY_S) as dead:
            played, heard = await collect(workers, config, tasks)
        seconds = time.perf_counter() - started
    names = Counter((t.task_id, t.member) for t in heard if isinstance(t, Trajectory))
    wanted, got = by_name(expected), by_name(played)
    return {
        "kills": len(dead),
        "kills_episodes": len(played),
        "kills_lost": len(wanted.keys() - got.keys()) + sum(isinstance(each, LostEpisode) for each in heard),
        "kills_double": sum(count - 1 for count in names.values()),
        "kills_different": sum(got.get(name) != trajectory for name, trajectory in wanted.items()),
        "kills_s": round(seconds, 1),
    }


async def measure_scaling(ci: bool, folder: Path) -> dict[str, Any]:
    tasks = make_tasks(64, 2 if ci else 6)
    seconds: list[float] = []
    for workers in (1, 2, 4):
        place = folder / str(workers)
        place.mkdir()
        config = make_config(place, workers=workers, at_once=AT_ONCE_EACH * workers, tool_s=1.0)
        async with open_workers(config, place / "logs") as runner:
            await collect(runner, config, make_tasks(4 * workers, 1))
            started = time.perf_counter()
            await collect(runner, config, tasks)
            seconds.append(time.perf_counter() - started)
        say(f"{workers} workers: {seconds[-1]:.1f} s")
    doublings = [round(one / two, 3) for one, two in itertools.pairwise(seconds)]
    return {
        "scaling_s": [round(each, 2) for each in seconds],
        "scaling_per_doubling": doublings,
        "scaling_least": min(doublings),
    }


async def measure_rate(ci: bool, folder: Path) -> dict[str, Any]:
    calls, per_s, periods = (40, 4.0, 3) if ci else (100, 5.0, 6)
    turns = 4
    config = make_config(folder, workers=4, at_once=4 * calls, tool_s=0.0, rate=(calls, per_s))
    async with open_workers(config, folder / "logs") as runner:
        await collect(runner, config, make_tasks(calls * (periods + 1) // turns, turns))
    came = arrivals(folder)
    most = max(bisect.bisect_left(came, begin + per_s) - place for place, begin in enumerate(came))
    # Without the first period, in which all come at once.
    begin, end = came[0] + per_s, came[0] + periods * per_s
    steady = bisect.bisect_left(came, end) - bisect.bisect_left(came, begin)
    return {
        "rate_limit": f"{calls} in {per_s:g} s",
        "rate_calls": len(came),
        "rate_most_in_a_period": round(most / calls, 4),
        "rate_reached": round(steady / (calls * (periods - 1)), 4),
    }


async def measure_thousand(ci: bool, _folder: Path) -> dict[str, Any]:
    episodes, turns = (100, 3) if ci else (1000, 5)
    found = await play(episodes=episodes, workers=4, tool_s=1.0, turns=turns)
    return {
        "thousand_episodes": episodes,
        "thousand_unfinished": episodes - found.calls // turns,
        "thousand_ideal_s": float(turns),
        "thousand": {name: round(figure, 3) for name, figure in asdict(found).items()},
        "thousand_an_episode": {
            "driver_cpu_ms": round(1000 * found.driver_cpu_s / episodes, 2),
            "worker_cpu_ms": round(1000 * found.worker_cpu_s / episodes, 2),
            "driver_grown_kib": round((found.driver_rss - found.driver_rss_before) / episodes / 1024, 1),
            "worker_grown_kib": round((found.worker_rss - found.worker_rss_before) / episodes / 1024, 1),
            "relayed_kib": round(found.relayed_bytes / episodes / 1024, 2),
        },
    }


PARTS: dict[str, Callable[[bool, Path], Awaitable[dict[str, Any]]]] = {
    "kills": measure_kills,
    "scaling": measure_scaling,
    "rate": measure_rate,
    "thousand": measure_thousand,
}


async def measure(parts: list[str], ci: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
            figures |= await PARTS[part](ci, Path(folder))
        say(f"{part}: {figures}")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true", help="only this, or with others that are named")
    arguments = parser.parse_args()
    parts = [part for part in PARTS if getattr(arguments, part)] or list(PARTS)
    figures = asyncio.run(measure(parts, arguments.ci))
    missed, slow = (
        missed_bars(figures, {name: bar for name, bar in bars.items() if name in figures})
        for bars in (BARS, {} if arguments.ci else SPEED_BARS)
    )
    print(json.dumps(figures), flush=True)
    return exit_status(missed, slow)


if __name__ == "__main__":
    sys.exit(main())
