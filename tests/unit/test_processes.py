"""Child processes: they log, they end when told, and they end when their parent does."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcprl.processes import ChildProcess, free_port, search_path

DEADLINE_S = 20.0
READY = "import sys; print('ready', flush=True); "
SLEEP = READY + "import time; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
# Starts a child of its own, says its pid, and lives on.
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {grandchild!r}]); "
    "print('pid', child.pid, flush=True); {then}"
)
# A program that starts a ChildProcess and then waits to be killed.
KEEPER = """
import asyncio, sys
from pathlib import Path
from mcprl.processes import ChildProcess

async def keep() -> None:
    child = await ChildProcess.start([sys.executable, "-c", sys.argv[1]], env={}, log=Path(sys.argv[2]))
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(keep())
"""


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what no event announces: a line in a log, the end of someone else's child."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def start(code: str, log: Path, **env: str) -> ChildProcess:
    return await ChildProcess.start([sys.executable, "-c", code], env=env, log=log)


async def started(code: str, log: Path) -> ChildProcess:
    """A child that has said that it is ready."""
    child = await start(code, log)
    await eventually(lambda: log.read_text().endswith("\n"))
    return child


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended. Unlike a pid, a pidfd cannot come to mean another process."""
    return bool(select.select([pidfd], [], [], 0)[0])


async def assert_it_ends_with(keeper: asyncio.subprocess.Process, pidfd: int) -> None:
    """The process behind the pidfd lives until the keeper is killed, and no longer."""
    try:
        assert not has_ended(pidfd)
        keeper.kill()
        await keeper.wait()
        await eventually(lambda: has_ended(pidfd))
    finally:
        os.close(pidfd)


async def test_output_of_both_streams_is_appended_to_the_log(tmp_path):
    log = tmp_path / "deep" / "child.log"
    for word in ("one", "two"):
        child = await start(f"import sys; print('out {word}'); print('err {word}', file=sys.stderr)", log)
        assert await child.wait() == 0
    assert sorted(log.read_text().split("\n")) == ["", "err one", "err two", "out one", "out two"]


async def test_the_exit_code_is_known_once_the_child_has_ended(tmp_path):
    child = await started(SLEEP, tmp_path / "log")
    assert child.exit_code is None
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    assert child.exit_code == -signal.SIGKILL
    assert await (await start("raise SystemExit(7)", tmp_path / "log")).wait() == 7


async def test_a_child_sees_exactly_the_environment_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hidden")
    child = await start(
        "import os; print(os.environ.get('SECRET'), os.environ.get('GIVEN'))", tmp_path / "log", GIVEN="seen"
    )
    await child.wait()
    assert child.log_tail() == "None seen"


async def test_a_child_cannot_read_our_input(tmp_path):
    child = await start("import sys; print(repr(sys.stdin.read()))", tmp_path / "log")
    assert await child.wait() == 0
    assert child.log_tail() == "''"


async def test_the_tail_of_the_log_is_its_last_lines_whatever_bytes_they_hold(tmp_path):
    child = await start(
        "import sys; sys.stdout.buffer.write(b''.join(b'line %d\\n' % n for n in range(50)) + b'\\xff!')",
        tmp_path / "log",
    )
    await child.wait()
    assert child.log_tail(3) == "line 48\nline 49\n�!"
    assert len(child.log_tail().splitlines()) == 20


async def test_a_program_that_does_not_exist_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        await ChildProcess.start([str(tmp_path / "nothing")], env={}, log=tmp_path / "log")


async def test_a_file_that_is_no_program_raises(tmp_path):
    (tmp_path / "data").write_text("data")
    with pytest.raises(PermissionError):
        await ChildProcess.start([str(tmp_path / "data")], env={}, log=tmp_path / "log")


async def test_stop_ends_a_child_with_a_chance_to_tidy_up(tmp_path):
    tidy = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('tidy', flush=True))); "
    child = await started(tidy + SLEEP, tmp_path / "log")
    await child.stop(grace_s=DEADLINE_S)
    assert child.exit_code == 0
    assert child.log_tail() == "ready\ntidy"


async def test_stop_kills_a_child_that_does_not_listen(tmp_path):
    child = await started(STUBBORN, tmp_path / "log")
    await child.stop(grace_s=0.05)
    assert child.exit_code == -signal.SIGKILL


async def test_stopping_again_and_stopping_one_that_has_ended_is_safe(tmp_path):
    child = await started(SLEEP, tmp_path / "log")
    await child.stop()
    code = child.exit_code
    await child.stop()
    assert child.exit_code == code == -signal.SIGTERM
    ended = await start("pass", tmp_path / "log")
    await ended.wait()
    await ended.stop()
    assert ended.exit_code == 0


@pytest.mark.parametrize("then", ["time.sleep(600)", "pass"], ids=["alive", "ended before"])
@pytest.mark.parametrize("grandchild", [SLEEP, STUBBORN], ids=["willing", "stubborn"])
async def test_stop_ends_the_childs_own_children_too(tmp_path, grandchild, then):
    child = await start(PARENT.format(grandchild=grandchild, then=then), tmp_path / "log")
    await eventually(lambda: "ready" in child.log_tail() and "pid" in child.log_tail())
    pid = int(child.log_tail().partition("pid ")[2].split()[0])
    pidfd = os.pidfd_open(pid)
    try:
        assert not has_ended(pidfd)
        await child.stop(grace_s=5.0)
        await eventually(lambda: has_ended(pidfd))
    finally:
        os.close(pidfd)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
@pytest.mark.parametrize("code", [SLEEP, STUBBORN], ids=["willing", "stubborn"])
async def test_a_child_dies_when_its_parent_is_killed(tmp_path, code):
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KEEPER, code, str(tmp_path / "log"), stdout=subprocess.PIPE
    )
    assert keeper.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        pidfd = os.pidfd_open(int(await keeper.stdout.readline()))
    await eventually(lambda: "ready" in (tmp_path / "log").read_text())
    await assert_it_ends_with(keeper, pidfd)


async def test_the_childs_own_children_die_too_when_its_parent_is_killed(tmp_path):
    log = tmp_path / "log"
    code = PARENT.format(grandchild=STUBBORN, then="time.sleep(600)")
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-c", KEEPER, code, str(log))
    await eventually(lambda: log.exists() and "ready" in log.read_text())
    pidfd = os.pidfd_open(int(log.read_text().partition("pid ")[2].split()[0]))
    await assert_it_ends_with(keeper, pidfd)


def test_a_free_port_can_be_bound_at_once():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))


def test_a_taken_port_is_not_given_out():
    taken = [socket.socket() for _ in range(20)]
    try:
        for sock in taken:
            sock.bind(("127.0.0.1", free_port()))
        assert free_port() not in {sock.getsockname()[1] for sock in taken}
    finally:
        for sock in taken:
            sock.close()


def test_programs_beside_the_running_python_are_found_first(monkeypatch):
    monkeypatch.setenv("PATH", "/first:/second")
    assert search_path().split(os.pathsep) == [str(Path(sys.executable).parent), "/first", "/second"]
    monkeypatch.delenv("PATH")
    assert search_path().split(os.pathsep)[1:] == os.defpath.split(os.pathsep)
