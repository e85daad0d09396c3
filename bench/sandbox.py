"""The Python sandbox: nothing gets out of it, honest programs run in it, and it is quick enough to train with.

Every attack of tests/security/sandbox_attacks.py is run for real, with all the ways the sandbox confines code on this
machine, then every bomb, then honest programs; then the times. `--ci` runs each attack once and measures less.

  attacks, bombs, blames  how many were tried
  escapes              attacks that reached something of the host, bombs that did not end at a limit, and failures that
                       were taken for the sandbox's
  survivors            processes of a sandbox that are alive after it
  honest, honest_failed  programs that must run, and those that did not
  plain_ms, pandas_ms  a call, from the program to its outcome, with a worker ready; median
  plain_p95_ms, pandas_p95_ms
  plain_start_ms, pandas_start_ms  until a worker is ready, which a call waits for only where no spare is left; median
  plain_per_s          programs a second, eight at a time, every one in a process of its own
  pandas_per_s         the same for programs that use pandas: each worker imports it anew
  host_cpu_ms          of that, processor time of the server itself for a program
  spare_mb             memory of a spare with pandas that it shares with no other

The bars of time are for two cores with nothing else to do: `load` is what else there was at the start.

    python bench/sandbox.py [--ci]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mcprl.errors import SandboxLostError
from mcprl_market.python.launch import Isolation, Kind, Launch, choose_launch, likely_isolation
from mcprl_market.python.process import WorkerProcess
from mcprl_market.python.programs import Failed, Limits, Program, Ran, Step
from mcprl_market.python.sandbox import Sandbox
from servers.harness import percentile, run_bench, say

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path += [str(TESTS / "security"), str(TESTS / "unit" / "market")]

from python_programs import HONEST  # noqa: E402
from sandbox_attacks import ATTACKS, BLAMES, BOMBS, LIMITS, attacked_host, program  # noqa: E402

PLAIN = "total = 0\nfor price in data:\n    total += price\ntotal / len(data)"
PANDAS = "pd.DataFrame({'close': data}).describe()['close'].to_dict()"
AT_ONCE = 8
BARS = {
    "attacks": (">=", 40),
    "escapes": ("==", 0),
    "survivors": ("==", 0),
    "honest": (">=", 20),
    "honest_failed": ("==", 0),
}
SPEED_BARS = {
    "plain_ms": ("<=", 40),
    "plain_start_ms": ("<=", 40),
    "pandas_ms": ("<=", 120),
    "plain_per_s": (">=", 60),
}


def with_data(code: str) -> Program:
    return Program(steps=(Step(name="code", code=code),), names={"data": [float(n) for n in range(100)], "context": {}})


async def escapes(launch: Launch, folder: Path) -> int:
    """How many attacks, bombs and blames succeeded with this kind of sandbox."""
    found = 0
    with attacked_host(folder) as host:
        async with Sandbox(launch) as sandbox:
            for name in ATTACKS:
                outcome = await sandbox.run(host.program(name))
                if harm := host.harm(outcome) or ([] if isinstance(outcome, Ran) else [str(outcome)]):
                    found += 1
                    say(f"ESCAPED ({launch.isolation}): {name}: {harm}")
            for name, (code, kinds) in BOMBS.items() if launch.isolation is likely_isolation() else ():
                outcome = await sandbox.run(program(code))
                if not isinstance(outcome, Failed) or outcome.kind not in kinds or host.harm(outcome):
                    found += 1
                    say(f"ESCAPED ({launch.isolation}): {name}: {outcome}")
            for name, code in BLAMES.items():
                try:
                    outcome = await sandbox.run(program(code))
                except SandboxLostError as error:
                    outcome = error
                if not isinstance(outcome, Failed):
                    found += 1
                    say(f"ESCAPED ({launch.isolation}): {name}: {outcome}")
    return found


async def failing_programs(sandbox: Sandbox) -> int:
    failed = 0
    for name, (code, value) in HONEST.items():
        outcome = await sandbox.run(program(code))
        if not isinstance(outcome, Ran) or outcome.value != value:
            failed += 1
            say(f"FAILED: {name}: {outcome}")
    return failed


async def latencies_ms(sandbox: Sandbox, code: str, count: int) -> list[float]:
    """One call after the other, each with a worker ready."""
    times: list[float] = []
    for _ in range(count):
        await sandbox.pool.full()
        started = time.perf_counter()
        outcome = await sandbox.run(with_data(code))
        times.append((time.perf_counter() - started) * 1000)
        assert isinstance(outcome, Ran), outcome
    return times


async def starts_ms(launch: Launch, kind: Kind, count: int) -> float:
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        worker = WorkerProcess(launch, kind)
        await worker.ready(60)
        times.append((time.perf_counter() - started) * 1000)
        worker.kill()
        await worker.gone()
    return statistics.median(times)


async def per_second(sandbox: Sandbox, code: str, count: int) -> float:
    await sandbox.pool.full()
    left = iter(range(count))
    started = time.perf_counter()

    async def work() -> None:
        for _ in left:
            outcome = await sandbox.run(with_data(code))
            assert isinstance(outcome, Ran), outcome

    await asyncio.gather(*[work() for _ in range(AT_ONCE)])
    return count / (time.perf_counter() - started)


def spare_mb() -> float:
    """Memory of the largest process in a sandbox, shared pages aside."""
    inner = [p for p in psutil.Process().children(recursive=True) if p.name() == "python"]
    return max(process.memory_full_info().uss for process in inner) / 1e6


async def times(ci: bool) -> dict[str, Any]:
    launch = choose_launch(Limits(), allow_unsafe=False)
    scale = 1 if ci else 4
    async with Sandbox(launch) as sandbox:
        await sandbox.pool.full()
        figures: dict[str, Any] = {
            "honest": len(HONEST),
            "honest_failed": await failing_programs(sandbox),
        }
        await sandbox.pool.full()
        figures["spare_mb"] = spare_mb()
        plain = await latencies_ms(sandbox, PLAIN, 50 * scale)
        pandas = await latencies_ms(sandbox, PANDAS, 10 * scale)
        figures |= {"plain_ms": statistics.median(plain), "plain_p95_ms": percentile(plain, 95)}
        figures |= {"pandas_ms": statistics.median(pandas), "pandas_p95_ms": percentile(pandas, 95)}
        cpu = time.process_time()
        # The best of some: what else the machine does can only take away from it.
        figures["plain_per_s"] = max([await per_second(sandbox, PLAIN, 100 * scale) for _ in range(3)])
        figures["host_cpu_ms"] = (time.process_time() - cpu) * 1000 / (300 * scale)
        figures["pandas_per_s"] = await per_second(sandbox, PANDAS, 10 * scale)
    figures["plain_start_ms"] = await starts_ms(launch, Kind.PLAIN, 10 * scale)
    figures["pandas_start_ms"] = await starts_ms(launch, Kind.PANDAS, 3 * scale)
    return {name: round(figure, 2) if isinstance(figure, float) else figure for name, figure in figures.items()}


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
    figures |= await times(ci)
    say(f"times: {figures}")
    base = choose_launch(LIMITS, allow_unsafe=False)
    ways = list(Isolation) if likely_isolation() is Isolation.OWN_USER else [Isolation.USER_NAMESPACE]
    found = 0
    for isolation in ways:
        (folder / isolation).mkdir()
        launch = Launch(limits=base.limits, bubblewrap=base.bubblewrap, isolation=isolation)
        found += await escapes(launch, folder / isolation)
        say(f"{len(ATTACKS)} attacks with isolation {isolation}")
    survivors = [
        process for process in psutil.Process().children(recursive=True) if process.name() in ("bwrap", "python")
    ]
    for process in survivors:
        say(f"survived: {process}")
    return figures | {
        "attacks": len(ATTACKS) * len(ways),
        "bombs": len(BOMBS),
        "blames": len(BLAMES) * len(ways),
        "escapes": found,
        "survivors": len(survivors),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))
