"""The pool of workers: ready in advance, used once, replaced when lost; a loss is not blamed on the code."""
# R14, R15

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from python_programs import needs_bubblewrap, program, sandboxed

from mcprl.errors import SandboxLostError
from mcprl.processes.guard import GUARD
from mcprl_market.python import process
from mcprl_market.python.launch import Kind, Launch, likely_isolation
from mcprl_market.python.programs import Failed, FailureKind, Limits, Outcome, Ran
from mcprl_market.python.sandbox import Sandbox

pytestmark = [pytest.mark.process, needs_bubblewrap]

TWO = Ran(value=2, shown="2", stdout="", stderr="")
POLL_S = 0.01


def workers() -> list[psutil.Process]:
    """The outer process of each worker."""
    return [child for child in psutil.Process().children() if child.name() == "bwrap"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what processes do sets no event here
            await asyncio.sleep(POLL_S)


def open_descriptors() -> int:
    GUARD.start()  # its pipe is kept as long as this process lives
    return len(os.listdir("/proc/self/fd"))


async def test_spares_are_ready_before_they_are_needed_and_all_end_with_the_pool():
    before = open_descriptors()
    async with Sandbox(sandboxed(), spares=2) as sandbox:
        await sandbox.pool.full()
        assert len(workers()) == 2 * len(Kind)
        assert await sandbox.run(program("1 + 1")) == TWO
        await sandbox.pool.full()
        assert len(workers()) == 2 * len(Kind)
    assert workers() == []
    assert open_descriptors() == before


async def test_a_pool_can_be_left_at_any_moment_of_its_start():
    before = open_descriptors()
    for number in range(25):
        async with asyncio.timeout(60), Sandbox(sandboxed(), spares=3):
            await asyncio.sleep(number / 500)
    assert workers() == []
    assert open_descriptors() == before


async def test_a_worker_runs_one_program_only():
    async with Sandbox(sandboxed(), spares=1) as sandbox:
        await sandbox.pool.full()
        before = {process.pid for process in workers()}
        await sandbox.run(program("1 + 1"))
        await sandbox.pool.full()
        await until(lambda: len({process.pid for process in workers()} & before) == 1)


async def test_many_programs_at_once_all_get_their_own_results():
    async with Sandbox(sandboxed(), spares=2) as sandbox:
        outcomes = await asyncio.gather(*[sandbox.run(program(f"{n} * data", data=2)) for n in range(30)])
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Ran)] == [2 * n for n in range(30)]


async def test_a_spare_that_died_is_not_given_a_program():
    async with Sandbox(sandboxed(), spares=1) as sandbox:
        await sandbox.pool.full()
        for process in workers():
            process.kill()
        await until(lambda: all(p.status() == psutil.STATUS_ZOMBIE for p in workers()) or workers() == [])
        outcomes = [await sandbox.run(program("1 + 1")) for _ in range(3)]
    assert outcomes == [TWO, TWO, TWO]


async def killed_while_it_sleeps(sandbox: Sandbox, kill: Callable[[psutil.Process, psutil.Process], None]) -> Outcome:
    """The outcome of a program after `kill`, which gets the outer process of its worker and the interpreter in it."""
    running = asyncio.create_task(sandbox.run(program("import time\ntime.sleep(600)")))
    found: list[psutil.Process] = []

    def is_running() -> bool:
        found[:] = [p for w in workers() for p in w.children(recursive=True) if p.name() == "python" and _sleeps(p)]
        return bool(found)

    await until(is_running)
    kill(workers()[0], found[0])
    return await running


async def test_a_killed_supervisor_is_the_sandboxs_fault_and_not_the_codes():
    async with Sandbox(sandboxed(deadline_s=600.0), spares=0) as sandbox:
        with pytest.raises(SandboxLostError, match="killed from outside"):
            await killed_while_it_sleeps(sandbox, lambda outer, inner: outer.kill())
        assert await sandbox.run(program("1 + 1")) == TWO


async def test_sigkill_is_the_sandboxs_fault_only_if_the_kernel_counted_an_out_of_memory_kill(tmp_path, monkeypatch):
    counter = tmp_path / "memory.events"
    monkeypatch.setattr(process, "_oom_counter", lambda: counter)
    counter.write_text("oom 3\noom_kill 2\noom_group_kill 0\n")

    def kill_for_memory(outer: psutil.Process, inner: psutil.Process) -> None:
        counter.write_text("oom 4\noom_kill 3\noom_group_kill 0\n")
        inner.kill()

    async with Sandbox(sandboxed(deadline_s=600.0), spares=0) as sandbox:
        outcome = await killed_while_it_sleeps(sandbox, lambda outer, inner: inner.kill())
        assert outcome == Failed(kind=FailureKind.ENDED, message="The interpreter was killed by SIGKILL.")
        with pytest.raises(SandboxLostError, match="killed because the machine ran out of memory"):
            await killed_while_it_sleeps(sandbox, kill_for_memory)
        assert await sandbox.run(program("1 + 1")) == TWO


def test_this_machine_counts_its_out_of_memory_kills():
    assert process._oom_counter() is not None
    assert process._oom_kills() >= 0


def _sleeps(process: psutil.Process) -> bool:
    """Whether the program's own sleep was reached: nothing else in a worker waits for a time."""
    with contextlib.suppress(OSError):
        return "nanosleep" in Path(f"/proc/{process.pid}/wchan").read_text()
    return False


async def test_code_that_kills_what_it_can_blames_nobody_else():
    async with Sandbox(sandboxed(), spares=0) as sandbox:
        for code in (
            "os._exit(137)",
            "os.kill(1, 9)",
            "os.kill(os.getpid(), 9)",
            "signal.raise_signal(15)",
            "os.abort()",
        ):
            outcome = await sandbox.run(program(f"import os, signal\n{code}"))
            assert isinstance(outcome, Failed), code
            assert outcome.kind in (FailureKind.ENDED, FailureKind.RAISED)


async def test_a_call_that_is_given_up_ends_its_worker():
    async with Sandbox(sandboxed(), spares=0) as sandbox:
        running = asyncio.create_task(sandbox.run(program("while True: pass")))
        await until(lambda: len(workers()) == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: workers() == [])


async def test_a_call_given_up_while_it_waits_for_a_worker_loses_none():
    async with Sandbox(sandboxed(), spares=0) as sandbox:
        waiting = asyncio.create_task(sandbox.run(program("1")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await sandbox.run(program("1 + 1")) == TWO


async def test_a_broken_sandbox_fails_those_who_wait_and_works_again_once_fixed(tmp_path, caplog):
    bubblewrap = tmp_path / "bwrap"
    bubblewrap.write_text("#!/bin/sh\necho 'bwrap: out of order' >&2\nexit 1\n")
    bubblewrap.chmod(0o755)
    launch = Launch(limits=Limits(), bubblewrap=str(bubblewrap), isolation=likely_isolation())
    async with Sandbox(launch, spares=1) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxLostError, match="did not become ready: bwrap: out of order"):
                await sandbox.run(program("1 + 1"))
        bubblewrap.unlink()
        with pytest.raises(SandboxLostError):
            await sandbox.run(program("1 + 1"))
        assert "did not start" in caplog.text
        bubblewrap.symlink_to(shutil.which("bwrap") or "")
        with contextlib.suppress(SandboxLostError):  # of a worker that was started before
            await sandbox.run(program("1 + 1"))
        assert await sandbox.run(program("1 + 1")) == TWO


async def test_the_first_programs_after_a_start_wait_for_their_workers():
    async with Sandbox(sandboxed(), spares=1) as sandbox:
        assert await asyncio.gather(*[sandbox.run(program("1 + 1")) for _ in range(6)]) == [TWO] * 6
