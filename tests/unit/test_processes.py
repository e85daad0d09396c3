"""Child processes: they log, they end when told, and they end when their parent does, with all their descendants."""

# R15

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mcprl.errors import UnfitEngineError
from mcprl.processes import CHILD_MARK, OWNER_MARK, ChildProcess, free_port, require_linux, search_path

pytestmark = pytest.mark.process

DEADLINE_S = 60.0  # only what hangs takes so long, or a machine that does
READY = "import sys; print('ready', flush=True); "
SLEEP = READY + "import time; time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
# Starts a child of its own, says its pid, and lives on.
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {grandchild!r}]); "
    "print('pid', child.pid, flush=True); {then}"
)
# A descendant that leaves the process group of the child: by a session of its own, or as daemons do.
IN_A_SESSION = "import os; os.setsid(); " + STUBBORN
DAEMON = (
    "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); print('pid', os.getpid()); "
    + STUBBORN
)
# The same with an empty environment, which has no mark.
NAMELESS_DAEMON = (
    "import os, sys; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); print('pid', os.getpid()); "
    f"sys.stdout.flush(); os.execve(sys.executable, [sys.executable, '-c', {STUBBORN!r}], {{}})"
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


async def start(code: str, log: Path, *, env: dict[str, str] | None = None, **options: Any) -> ChildProcess:
    return await ChildProcess.start([sys.executable, "-c", code], env=env or {}, log=log, **options)


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
    child = await start("import os; print(sorted(os.environ))", tmp_path / "log", env={"GIVEN": "seen", "LC_ALL": "C"})
    await child.wait()
    assert child.log_tail() == str(sorted(["GIVEN", "LC_ALL", OWNER_MARK, CHILD_MARK]))


async def test_a_child_cannot_read_our_input(tmp_path):
    child = await start("import sys; print(repr(sys.stdin.read()))", tmp_path / "log")
    assert await child.wait() == 0
    assert child.log_tail() == "''"


async def test_the_tail_of_the_log_has_no_secrets(tmp_path):
    child = await start("print('Authorization: Bearer 3f9a8b7c6d5e4f3a2b1c0d9e')", tmp_path / "log")
    await child.wait()
    assert "3f9a8b7c6d5e4f3a2b1c0d9e" not in child.log_tail()
    assert "Authorization" in child.log_tail()


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
    await child.stop(grace_s=DEADLINE_S)
    code = child.exit_code
    await child.stop()
    assert child.exit_code == code == -signal.SIGTERM
    ended = await start("pass", tmp_path / "log")
    await ended.wait()
    await ended.stop()
    assert ended.exit_code == 0


@contextlib.asynccontextmanager
async def grandchild_of(child: ChildProcess) -> AsyncGenerator[int]:
    """The pidfd of the last process that said its pid in the child's log, once it has also said that it is ready."""
    await eventually(lambda: "ready" in child.log_tail() and "pid" in child.log_tail())
    pidfd = os.pidfd_open(int(child.log_tail().rpartition("pid ")[2].split()[0]))
    try:
        assert not has_ended(pidfd)
        yield pidfd
    finally:
        os.close(pidfd)


@pytest.mark.parametrize(
    "grandchild",
    [SLEEP, STUBBORN, IN_A_SESSION, DAEMON, NAMELESS_DAEMON],
    ids=["willing", "stubborn", "session", "daemon", "without environment"],
)
async def test_stop_ends_the_childs_own_children_too(tmp_path, grandchild):
    child = await start(PARENT.format(grandchild=grandchild, then="time.sleep(600)"), tmp_path / "log")
    async with grandchild_of(child) as pidfd:
        await child.stop(grace_s=5.0)
        await eventually(lambda: has_ended(pidfd))


async def test_a_child_that_ends_by_itself_takes_its_group_with_it(tmp_path):
    child = await start(PARENT.format(grandchild=STUBBORN, then="sys.stdin.readline()"), tmp_path / "log", pipes=True)
    assert child.stdin is not None
    assert child.stdout is not None
    pid = int(child.stdout.read(64).split()[1])
    pidfd = os.pidfd_open(pid)
    try:
        child.stdin.write(b"\n")
        assert await child.wait() == 0
        await eventually(lambda: has_ended(pidfd))
    finally:
        os.close(pidfd)
    await child.stop()


async def test_stopping_one_child_leaves_the_others_alone(tmp_path):
    code = PARENT.format(grandchild=IN_A_SESSION, then="time.sleep(600)")
    one, other = [await start(code, tmp_path / name) for name in ("one", "other")]
    async with grandchild_of(one) as ended, grandchild_of(other) as living:
        await one.stop()
        await eventually(lambda: has_ended(ended))
        assert not has_ended(living)
        assert other.exit_code is None
        await other.stop()
        await eventually(lambda: has_ended(living))


async def test_a_child_with_pipes_ends_by_the_end_of_its_input_without_a_signal(tmp_path, monkeypatch):
    monkeypatch.setattr("mcprl.processes.child._INPUT_END_S", DEADLINE_S)
    code = "import sys; print('ready', file=sys.stderr, flush=True); sys.stdin.read(); print('x' * 1000000)"
    child = await start(code, tmp_path / "log", pipes=True)
    await eventually(lambda: "ready" in child.log_tail())
    await child.stop(grace_s=DEADLINE_S)
    assert child.exit_code == 0


async def test_a_child_with_pipes_talks_to_us_and_logs_only_its_errors(tmp_path):
    code = "import sys; print(sys.stdin.readline().strip().upper(), flush=True); print('error', file=sys.stderr)"
    child = await start(code, tmp_path / "log", pipes=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"hello\n")
    assert await asyncio.to_thread(child.stdout.read, 64) == b"HELLO\n"
    assert await child.wait() == 0
    assert child.log_tail() == "error"
    await child.stop()


async def test_a_child_runs_in_the_folder_it_is_given(tmp_path):
    (tmp_path / "folder").mkdir()
    child = await start("import os; print(os.getcwd())", tmp_path / "log", cwd=str(tmp_path / "folder"))
    await child.wait()
    assert child.log_tail() == str(tmp_path / "folder")


async def test_a_cleaned_log_has_no_word_that_is_struck_out_and_has_the_last_words(tmp_path):
    code = "import sys; print('key hunter2'); sys.stderr.write('\\xe9 last hunter2')"
    child = await start(code, tmp_path / "log", clean=lambda line: line.replace("hunter2", "***"))
    await child.wait()
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["key ***", "é last ***"]
    await child.stop()


async def test_a_cleaned_log_cuts_long_lines_and_is_bounded_and_its_child_never_waits(tmp_path):
    code = "import sys; print('a' * 200_000); [print('b' * 60_000) for _ in range(400)]; print('end', file=sys.stderr)"
    child = await start(code, tmp_path / "log", clean=str)
    assert await child.wait() == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "a" * 65536 + " [line cut]"
    assert lines[-1] == "[log full: the rest is dropped]"
    assert set(lines[1:-1]) == {"b" * 60_000}
    assert 16_000_000 < (tmp_path / "log").stat().st_size <= 16 * 1024 * 1024 + 100
    await child.stop()


async def test_a_word_across_the_cut_of_a_long_line_is_struck_out(tmp_path):
    child = await start(
        "print('a' * 65530 + 'hunter2-hunter2')", tmp_path / "log", clean=lambda line: line.replace("hunter2", "***")
    )
    await child.wait()
    await child.stop()
    assert "hunt" not in (tmp_path / "log").read_text()


async def test_a_descendant_that_keeps_the_cleaned_log_open_does_not_hold_up_the_stop(tmp_path):
    child = await start(PARENT.format(grandchild=DAEMON, then="time.sleep(600)"), tmp_path / "log", clean=str)
    async with grandchild_of(child) as pidfd:
        async with asyncio.timeout(DEADLINE_S):
            await child.stop()
        await eventually(lambda: has_ended(pidfd))


async def test_all_children_share_one_guard_which_carries_no_mark_and_comes_back_when_killed(tmp_path):
    children = [await started(SLEEP, tmp_path / str(number)) for number in range(3)]
    (guard,) = guards_of(os.getpid())
    assert OWNER_MARK not in guard.environ()
    guard.kill()
    await eventually(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
    children.append(await started(SLEEP, tmp_path / "last"))
    assert len(guards_of(os.getpid())) == 1
    for child in children:
        await child.stop()


def guards_of(pid: int) -> list[psutil.Process]:
    """The living guards of a process: the shells it started with the mark as their name."""
    children = psutil.Process(pid).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and OWNER_MARK in child.cmdline()[-1]]


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


@pytest.mark.skipif(sys.platform != "linux", reason="marks are read in /proc")
@pytest.mark.parametrize(
    "grandchild",
    [STUBBORN, IN_A_SESSION, DAEMON, NAMELESS_DAEMON],
    ids=["in the group", "session", "daemon", "without environment"],
)
async def test_the_childs_own_children_die_too_when_its_parent_is_killed(tmp_path, grandchild):
    log = tmp_path / "log"
    code = PARENT.format(grandchild=grandchild, then="time.sleep(600)")
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-c", KEEPER, code, str(log))
    await eventually(lambda: log.exists() and "ready" in log.read_text() and "pid" in log.read_text())
    (guard,) = guards_of(keeper.pid)
    pidfd = os.pidfd_open(int(log.read_text().rpartition("pid ")[2].split()[0]))
    await assert_it_ends_with(keeper, pidfd)
    await eventually(lambda: not guard.is_running())


async def test_a_fork_of_the_parent_does_not_keep_the_children_alive(tmp_path):
    log = tmp_path / "log"
    # Without its output, whose end the wait for the keeper would wait for.
    fork = "    import os, time; os.fork() or (os.close(1), time.sleep(600))\n"
    forking = KEEPER.replace("    print(child.pid", f"{fork}    print(child.pid")
    code = PARENT.format(grandchild=IN_A_SESSION, then="time.sleep(600)")
    keeper = await asyncio.create_subprocess_exec(sys.executable, "-c", forking, code, str(log), stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    await keeper.stdout.readline()
    await eventually(lambda: "ready" in log.read_text())
    (fork,) = [child for child in psutil.Process(keeper.pid).children() if forking in child.cmdline()]
    try:
        await assert_it_ends_with(keeper, os.pidfd_open(int(log.read_text().rpartition("pid ")[2].split()[0])))
        assert fork.is_running()
    finally:
        fork.kill()


async def test_children_that_were_never_stopped_end_when_the_parent_ends_as_usual(tmp_path):
    log = tmp_path / "log"
    quick = KEEPER.replace("    await asyncio.sleep(600)", "    await asyncio.to_thread(sys.stdin.readline)")
    quick = f"from mcprl.processes import guard\nguard._GUARD_END_S = {DEADLINE_S}\n" + quick
    code = PARENT.format(grandchild=DAEMON, then="time.sleep(600)")
    keeper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", quick, code, str(log), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    await eventually(lambda: log.exists() and "ready" in log.read_text() and "pid" in log.read_text())
    pidfd = os.pidfd_open(int(log.read_text().rpartition("pid ")[2].split()[0]))
    try:
        assert not has_ended(pidfd)
        await keeper.communicate(b"\n")
        assert keeper.returncode == 0
        assert has_ended(pidfd), "it is gone already when the parent is"
    finally:
        os.close(pidfd)


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


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_a_system_without_support_is_refused_by_name(monkeypatch, platform, name):
    monkeypatch.setattr("sys.platform", platform)
    with pytest.raises(UnfitEngineError, match=f"this is {name}, but training needs Linux.*Fix: train on Linux"):
        require_linux()
