"""Nothing outlives a run that is killed: kill -9 of a process with open tool servers, again and again.

The process holds a Toolbox of stdio and HTTP servers, shared, replicated and one for each episode. Some have children,
some of which left their process group or became daemons; one server is blocked in a tool. None listens to SIGTERM. Two
of three runs are killed when all is ready, the third somewhere in its start. All descendants count, the guard included:
those seen before the kill, and those that carry the run's variable in their environment.

  runs, processes  how often, and how many processes were alive when it happened, over all runs
  survivors        processes alive ten seconds after a kill, over all runs
  slowest_s        the longest from a kill to the end of the last process

    python bench/orphans.py [--ci]
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mcprl.config import ServerSettings
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec, Toolbox
from servers.harness import run_bench, say

HERE = Path(__file__).resolve().parent
FAMILY = HERE / "servers" / "family.py"
SERVER = HERE.parent / "tests" / "contract" / "tools" / "flooding_server.py"
VARIABLE = "MCPRL_BENCH_RUN"
RUNS, CI_RUNS = 50, 10
LIMIT_S = 10.0  # what is alive then is taken for a survivor; at full size all have to be gone after 2 s
LATE_S = 2.0
READY_S = 120.0
POLL_S = 0.01
SEED = 5
BARS = {"survivors": ("==", 0)}
SPEED_BARS = {"slowest_s": ("<=", 2.0)}


def specs(folder: Path) -> list[ServerSpec]:
    """Servers that each offer another tool of the same script, since names must differ."""

    def stdio(tool: str, kinds: str, **settings: Any) -> ServerSpec:
        arguments = (str(FAMILY), str(folder), kinds, str(SERVER))
        return ServerSpec(
            name=f"stdio {tool}",
            command=sys.executable,
            args=arguments,
            env={VARIABLE: str(folder)},
            settings=ServerSettings(allow=(tool,), **settings),
        )

    start = (sys.executable, str(FAMILY), str(folder), "child,session,daemon", str(SERVER), "--http", "{port}")
    return [
        stdio("echo", "", replicas=2),
        stdio("deep", "child,session,daemon"),
        stdio("huge", "daemon", isolation="per_episode"),
        stdio("deaf", "session"),
        ServerSpec(
            name="http",
            url="http://127.0.0.1:{port}/mcp",
            env={VARIABLE: str(folder)},
            settings=ServerSettings(start=start, allow=("no_object",)),
        ),
    ]


async def keep(folder: Path) -> None:
    """The process to be killed."""
    async with Toolbox(specs(folder), log_dir=folder / "logs") as toolbox, toolbox.lease(None) as lease:
        await lease.call(ToolCall(name="deaf", arguments={}))  # from now on its server is blocked
        (folder / "ready").touch()
        await asyncio.Event().wait()


def descendants(keeper: psutil.Process, folder: Path) -> set[psutil.Process]:
    """Every process of the run but the keeper."""
    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        found |= set(keeper.children(recursive=True))
    mark = f"{VARIABLE}={folder}".encode()
    for pid in psutil.pids():
        # It may have ended meanwhile.
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(psutil.Process(pid))
    for file in folder.iterdir():
        with contextlib.suppress(psutil.NoSuchProcess):
            if file.name.isdigit():
                found.add(psutil.Process(int(file.name)))
    return found


def living(processes: set[psutil.Process]) -> set[psutil.Process]:
    alive: set[psutil.Process] = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.add(process)
    return alive


async def kill_one(folder: Path, *, early_s: float | None) -> tuple[int, int, float]:
    """Start a keeper and kill it. Returns how many descendants it had, how many survived, and when the last ended."""
    with (folder / "keeper.log").open("wb") as log:
        keeper = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--keep", str(folder), stdout=log, stderr=log
        )
    process = psutil.Process(keeper.pid)
    async with asyncio.timeout(READY_S):
        while not ((folder / "ready").exists() or (early_s is not None and (folder / "logs").exists())):
            if keeper.returncode is not None:
                raise RuntimeError((folder / "keeper.log").read_text())
            await asyncio.sleep(POLL_S)
    if early_s is not None:
        await asyncio.sleep(early_s)
    seen = descendants(process, folder)
    killed_at = time.monotonic()
    keeper.kill()
    last_s = 0.0
    while left := living(seen := seen | descendants(process, folder)):
        last_s = time.monotonic() - killed_at
        if last_s > LIMIT_S:
            break
        await asyncio.sleep(POLL_S)
    if early_s is not None and not left:
        # One that was just being started may show up late.
        await asyncio.sleep(max(0.0, LATE_S - last_s))
        left = living(descendants(process, folder))
    await keeper.wait()
    for survivor in left:
        say(f"survived: {survivor}")
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    return len(seen), len(left), last_s


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    rng = random.Random(SEED)
    processes, survivors, slowest_s = 0, 0, 0.0
    runs = CI_RUNS if ci else RUNS
    for run in range(runs):
        early_s = rng.uniform(0.0, 1.0) if run % 3 == 2 else None
        (folder / str(run)).mkdir()
        seen, left, last_s = await kill_one(folder / str(run), early_s=early_s)
        say(f"run {run + 1} of {runs}: {seen} processes, {left} survived, the last ended after {last_s:.2f} s")
        processes, survivors, slowest_s = processes + seen, survivors + left, max(slowest_s, last_s)
    return {"runs": runs, "processes": processes, "survivors": survivors, "slowest_s": round(slowest_s, 3)}


def main() -> int:
    if "--keep" in sys.argv:
        asyncio.run(keep(Path(sys.argv[-1])))
        return 0
    return run_bench(__doc__, measure, BARS, speed=SPEED_BARS)


if __name__ == "__main__":
    sys.exit(main())
