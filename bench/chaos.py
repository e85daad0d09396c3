"""Episodes that go on while their tool servers are killed.

32 episodes at once, over and over, on eight stdio servers; every two seconds one of them is killed with SIGKILL. An
episode is ten calls to random servers with time to think between them, half of them reads and half of them writes that
must not happen twice. An attempt that the infrastructure failed is run again with fresh ids, up to five times, as the
collector does. The servers keep a ledger of the writes that reached them, which outlives their processes.

First the same runs for as long without a kill: `throughput_ratio` compares the calls of finished episodes in each
phase. `lost_for_good` counts episodes that failed five times, `delivered_twice` ids in the ledger more than once,
`never_delivered` ids of finished episodes that are not in it, `respawn_p95_s` is the time from a kill to the first
answer of the next process, asked for by a probe beside the episodes. `cpu_share` is how much of the whole machine the
bench and its servers used without kills: near 1, the machine and not the runtime would be measured.

    python bench/chaos.py [--ci]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mcprl.config import ServerSettings
from mcprl.errors import InfrastructureError
from mcprl.records import ToolCall
from mcprl.tools import Toolbox
from servers.harness import percentile, run_bench, say, stdio_spec

EPISODES_AT_ONCE = 32
SERVERS = tuple(f"s{number}" for number in range(8))
CALLS_AN_EPISODE = 10
MAX_ATTEMPTS = 5
KILL_EVERY_S = 2.0
WORK_MS = (50, 150)
# Shorter than a turn of even a small model: the longer it is, the less a dead server is in anyone's way.
THINK_S = (0.15, 0.35)
SEED = 7
BARS = {
    "lost_for_good": ("==", 0),
    "delivered_twice": ("==", 0),
    "never_delivered": ("==", 0),
}
SPEED_BARS = {
    "throughput_ratio": (">=", 0.80),
    "respawn_p95_s": ("<=", 3.0),
}


@dataclass
class Phase:
    """One phase and what happened in it. Calls count where they ended before `ends` and their episode finished."""

    name: str
    ends: float
    episodes: int = 0
    calls: int = 0
    reruns: Counter[str] = field(default_factory=Counter[str])
    lost_for_good: int = 0
    written: set[str] = field(default_factory=set[str])


async def run_attempt(toolbox: Toolbox, draw: random.Random, attempt_id: str, phase: Phase) -> None:
    """One attempt at an episode. Raises InfrastructureError where a server fails it."""
    written: set[str] = set()
    in_time = 0
    async with toolbox.lease(None) as lease:
        for place in range(CALLS_AN_EPISODE):
            await asyncio.sleep(draw.uniform(*THINK_S))
            server, work_ms = draw.choice(SERVERS), draw.randint(*WORK_MS)
            if draw.random() < 0.5:
                call = ToolCall(name=f"look_{server}", arguments={"item": draw.randrange(10**9), "work_ms": work_ms})
            else:
                call = ToolCall(name=f"write_{server}", arguments={"id": f"{attempt_id}.{place}", "work_ms": work_ms})
                written.add(f"{attempt_id}.{place}")
            observation = await lease.call(call)
            assert observation.fault is None, observation
            in_time += time.monotonic() < phase.ends
    phase.calls += in_time
    phase.written |= written


async def keep_running_episodes(toolbox: Toolbox, worker: int, phase: Phase) -> None:
    number = 0
    while time.monotonic() < phase.ends:
        number += 1
        for attempt in range(MAX_ATTEMPTS):
            attempt_id = f"{phase.name}.{worker}.{number}.{attempt}"
            try:
                await run_attempt(toolbox, random.Random(f"{SEED}.{attempt_id}"), attempt_id, phase)
            except InfrastructureError as error:
                phase.reruns[error.code] += 1
            else:
                phase.episodes += 1
                break
        else:
            phase.lost_for_good += 1


async def run_phase(toolbox: Toolbox, phase: Phase) -> None:
    await asyncio.gather(*(keep_running_episodes(toolbox, worker, phase) for worker in range(EPISODES_AT_ONCE)))


async def respawn_s(toolbox: Toolbox, server: str, killed_pid: int) -> float:
    """Seconds until another process than the killed one answers for this server."""
    killed_at = time.monotonic()
    async with toolbox.lease([f"look_{server}"]) as lease:
        while True:
            call = ToolCall(name=f"look_{server}", arguments={"item": random.randrange(10**9), "work_ms": 0})
            with contextlib.suppress(InfrastructureError):
                observation = await lease.call(call)
                if int(observation.text) != killed_pid:
                    return time.monotonic() - killed_at
            await asyncio.sleep(0.01)


async def kill_servers(toolbox: Toolbox, ends: float) -> list[float]:
    """Kill a server every two seconds; how long each took to answer again."""
    draw = random.Random(SEED)
    probes: list[asyncio.Task[float]] = []
    start = time.monotonic()
    for kill in range(1, 10**6):
        at = start + kill * KILL_EVERY_S
        if at >= ends:
            return list(await asyncio.gather(*probes))
        await asyncio.sleep(at - time.monotonic())
        alive = [server for server in SERVERS if toolbox.pids(server)]
        server = draw.choice(alive)
        (pid,) = toolbox.pids(server)
        os.kill(pid, signal.SIGKILL)
        probes.append(asyncio.create_task(respawn_s(toolbox, server, pid)))
    raise AssertionError("the phase never ends")


def cpu_seconds() -> float:
    """CPU time of this process and its living children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def deliveries(folder: Path) -> Counter[str]:
    ledgers = [folder / f"{server}.ledger" for server in SERVERS]
    return Counter(line for ledger in ledgers for line in ledger.read_text().splitlines())


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    phase_s = 20.0 if ci else 120.0
    specs = [
        stdio_spec(
            name, "ledger.py", "--name", name, "--ledger", str(folder / f"{name}.ledger"), settings=ServerSettings()
        )
        for name in SERVERS
    ]
    async with Toolbox(specs, log_dir=folder) as toolbox:
        say(f"{len(SERVERS)} servers run; {phase_s:g} s without a kill")
        calm = Phase("calm", time.monotonic() + phase_s)
        cpu_before = cpu_seconds()
        await run_phase(toolbox, calm)
        cpu_share = (cpu_seconds() - cpu_before) / phase_s / (os.cpu_count() or 1)
        say(f"{calm.episodes} episodes, {calm.calls / phase_s:.1f} calls/s, CPU {cpu_share:.0%}")
        storm = Phase("storm", time.monotonic() + phase_s)
        respawns, _ = await asyncio.gather(kill_servers(toolbox, storm.ends), run_phase(toolbox, storm))
        say(f"{storm.episodes} episodes, {storm.calls / phase_s:.1f} calls/s, {len(respawns)} kills")
        restarts = toolbox.restarts
    delivered = deliveries(folder)
    finished = calm.written | storm.written
    return {
        "throughput_ratio": round(storm.calls / calm.calls, 3),
        "lost_for_good": calm.lost_for_good + storm.lost_for_good,
        "delivered_twice": sum(count > 1 for count in delivered.values()),
        "never_delivered": len(finished - delivered.keys()),
        "respawn_p95_s": round(percentile(respawns, 95), 3),
        "respawn_median_s": round(percentile(respawns, 50), 3),
        "kills": len(respawns),
        "restarts": restarts,
        "attempts_run_again": storm.reruns.total(),
        "attempts_run_again_by_code": dict(storm.reruns),
        "calm_attempts_run_again": calm.reruns.total(),
        "episodes": {"calm": calm.episodes, "storm": storm.episodes},
        "calls_per_s": {"calm": round(calm.calls / phase_s, 1), "storm": round(storm.calls / phase_s, 1)},
        "writes_delivered": len(delivered),
        "cpu_share": round(cpu_share, 3),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
