"""Nothing that a policy's code tries in the Python sandbox reaches the host, outlives it, or brings the host down."""
# R14

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sandbox_attacks import ATTACKS, BOMBS, LIMITS, PATIENT, Host, attacked_host, program

from mcprl.processes import CHILD_MARK
from mcprl_market.python.launch import Isolation, Kind, Launch, framed, likely_isolation
from mcprl_market.python.process import Ending, WorkerProcess
from mcprl_market.python.programs import Failed, FailureKind, Limits, Ran
from mcprl_market.python.sandbox import Sandbox

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: run scripts/setup"),
]

ISOLATIONS = list(Isolation) if likely_isolation() is Isolation.OWN_USER else [Isolation.USER_NAMESPACE]
# Those that harm nothing but what the tests made for them, even where nothing holds them.
HARMLESS = (
    "reads a file that everybody may read",
    "lists the checkout",
    "lists the processes",
    "connects to a server on the host",
    "connects to an abstract socket",
    "connects to a socket in a folder",
    "kills a process of the host",
    "starts a program",
    "forks",
    "opens a socket by number",
    "reads the host's name",
    "ends as if the machine had killed it",
)
FIRST_USER = 0x70000000


def launch(isolation: Isolation, limits: Limits = PATIENT) -> Launch:
    return Launch(limits=limits, bubblewrap=shutil.which("bwrap"), isolation=isolation)


class UnfilteredLaunch(Launch):
    """Starts workers that may make any system call, so that the other walls are seen to hold by themselves."""

    def setup(self, kind: Kind) -> bytes:
        message = marshal.loads(super().setup(kind)[4:])
        return framed(marshal.dumps({**message, "filter": None}))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with attacked_host(tmp_path) as attacked:
        yield attacked


def namespaces_of(processes: list[psutil.Process]) -> set[str]:
    """Namespaces of process ids, ours aside."""
    found: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it may have ended meanwhile
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(os.readlink(f"/proc/{process.pid}/ns/pid"))
    return found - {os.readlink("/proc/self/ns/pid")}


async def run_and_look(work: Launch, code: str) -> tuple[Ending, set[str]]:
    """Run code in a worker; what it left, and the namespace it ran in where a process in there is still alive."""
    worker = WorkerProcess(work, Kind.PLAIN)
    await worker.ready(60)
    inside = psutil.Process(worker.pid).children(recursive=True)
    namespace = namespaces_of(inside)
    assert len(namespace) == 1
    # Held open, so that its number is given to no other.
    held = os.open(f"/proc/{inside[0].pid}/ns/pid", os.O_RDONLY)
    ending = await worker.run(marshal.dumps({"steps": [{"name": "code", "code": code}], "names": {}}))
    await worker.gone()
    alive = namespace & namespaces_of(list(psutil.process_iter()))
    os.close(held)
    return ending, alive


def kernel_status(pid: int) -> dict[str, str]:
    return dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_reaches_nothing_of_the_host(attack, isolation, host):
    async with Sandbox(launch(isolation), spares=0) as sandbox:
        outcome = await sandbox.run(host.program(attack))
    assert isinstance(outcome, Ran), outcome
    assert host.harm(outcome) == []


@pytest.mark.parametrize("attack", HARMLESS)
async def test_the_attacks_would_succeed_without_a_sandbox(attack, host):
    async with Sandbox(Launch(limits=PATIENT, bubblewrap=None), spares=0) as sandbox:
        outcome = await sandbox.run(host.program(attack))
    if attack == "ends as if the machine had killed it":
        assert outcome == Failed(kind=FailureKind.ENDED, message="The interpreter was killed by SIGKILL.")
    else:
        assert host.harm(outcome) != [], outcome


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_ends_at_its_limit_and_the_next_program_runs(bomb, host):
    code, kinds = BOMBS[bomb]
    # Time is short where it is what ends the bomb.
    limits = replace(PATIENT, cpu_s=LIMITS.cpu_s) if kinds & {"cpu", "deadline"} else PATIENT
    limits = replace(limits, deadline_s=LIMITS.deadline_s) if "deadline" in kinds else limits
    async with Sandbox(launch(likely_isolation(), limits), spares=0) as sandbox:
        async with asyncio.timeout(120):
            outcome = await sandbox.run(program(code))
        assert isinstance(outcome, Failed)
        assert outcome.kind in kinds, outcome
        sandbox.pool._launch = launch(likely_isolation())
        assert await sandbox.run(program("1 + 1")) == Ran(value=2, shown="2", stdout="", stderr="")
    assert host.harm(outcome) == []


def assert_no_rights(worker: int, isolation: Isolation) -> None:
    (first,) = psutil.Process(worker).children()
    (inner,) = first.children()
    status = kernel_status(inner.pid)
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    assert status["NSpid"].split()[1:] == ["2"]
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
    users = {int(user) for user in status["Uid"].split()}
    assert len(users) == 1
    if isolation is Isolation.OWN_USER:
        assert min(users) >= FIRST_USER
        assert status["Groups"].strip() == ""
    for namespace in ("net", "pid", "mnt", "ipc", "uts"):
        assert os.readlink(f"/proc/{inner.pid}/ns/{namespace}") != os.readlink(f"/proc/self/ns/{namespace}")


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_the_kernel_itself_says_that_a_worker_has_no_rights(isolation):
    worker = WorkerProcess(launch(isolation), Kind.PLAIN)
    await worker.ready(60)
    await asyncio.to_thread(assert_no_rights, worker.pid, isolation)
    worker.kill()
    await worker.gone()


async def test_every_worker_has_a_user_of_its_own():
    if likely_isolation() is not Isolation.OWN_USER:
        pytest.skip("not run as root")
    async with Sandbox(launch(Isolation.OWN_USER), spares=0) as sandbox:
        outcomes = [await sandbox.run(program("import os\nos.getuid()")) for _ in range(3)]
    assert len({outcome.value for outcome in outcomes if isinstance(outcome, Ran)}) == 3


DAEMON = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 1024)
            time.sleep(10**6)
        os._exit(0)
result = 5
"""
FORK_BOMB = """
import os
made = 0
while True:
    try:
        if os.fork() == 0:
            import time; time.sleep(10**6)
        made += 1
    except OSError:
        break
made
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_even_without_the_filter_daemons_end_with_their_sandbox(isolation):
    unfiltered = UnfilteredLaunch(limits=PATIENT, bubblewrap=shutil.which("bwrap"), isolation=isolation)
    ending, alive = await run_and_look(unfiltered, DAEMON)
    assert ending.report == b'{"value": 5}'
    assert alive == set()


async def test_even_without_the_filter_a_fork_bomb_is_small():
    if os.geteuid() == 0 and likely_isolation() is not Isolation.OWN_USER:
        pytest.skip("the kernel lets root have any number of processes")
    unfiltered = UnfilteredLaunch(limits=PATIENT, bubblewrap=shutil.which("bwrap"), isolation=likely_isolation())
    ending, alive = await run_and_look(unfiltered, FORK_BOMB)
    assert ending.report is not None
    assert 0 < json.loads(ending.report)["value"] <= LIMITS.threads + 2
    assert alive == set()


UNFILTERED = (
    "reads a file that everybody may read",
    "lists the checkout",
    "lists the processes",
    "connects to a server on the host",
    "connects to an abstract socket",
    "kills a process of the host",
    "becomes root",
    "mounts",
    "changes its root folder",
    "unmounts what hides the packages",
    "enters a namespace",
    "restarts the machine",
    "makes a device",
    "writes to what is shown",
)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("attack", UNFILTERED)
async def test_even_without_the_filter_the_host_is_out_of_reach(attack, isolation, host):
    unfiltered = UnfilteredLaunch(limits=PATIENT, bubblewrap=shutil.which("bwrap"), isolation=isolation)
    async with Sandbox(unfiltered, spares=0) as sandbox:
        outcome = await sandbox.run(host.program(attack))
    assert isinstance(outcome, Ran), outcome
    assert host.harm(outcome) == []


FORGERIES = {
    "a report": (b'{"value": "forged"}', "forged"),
    "a report that is no JSON": (b"\xff\xfe", None),
    "a report of the wrong form": (b'{"error": {"type": 1}}', None),
    "a report that is a list": (b"[1]", None),
    "an error of the sandbox's own": (b'{"lost": true, "limit": "none", "error": "x"}', None),
    "a report nested without end": (b"[" * 100_000, None),
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_code_that_writes_where_results_go_forges_no_more_than_its_own_result(forgery):
    message, value = FORGERIES[forgery]
    code = f"""
import os
message = {message!r}
for fd in range(3, 200):
    try:
        os.write(fd, len(message).to_bytes(4, "big") + message)
    except OSError:
        pass
os._exit(0)
"""
    async with Sandbox(launch(likely_isolation()), spares=0) as sandbox:
        forged = await sandbox.run(program(code))
        after = await sandbox.run(program("'honest'"))
    if value is None:
        assert isinstance(forged, Failed), forged
    else:
        assert isinstance(forged, Ran)
        assert forged.value == value
    assert after == Ran(value="honest", shown="honest", stdout="", stderr="")


async def test_a_program_finds_nothing_of_the_one_before():
    async with Sandbox(launch(likely_isolation()), spares=2) as sandbox:
        left = "import builtins, json, os, sys\nbuiltins.left = json.left = 1\nopen('/tmp/left', 'w').close()"
        looked = "import builtins, json, os\n(hasattr(builtins, 'left'), hasattr(json, 'left'), os.listdir('/tmp'))"
        await sandbox.run(program(left))
        outcomes = [await sandbox.run(program(looked)) for _ in range(4)]
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Ran)] == [[False, False, []]] * 4


async def test_a_program_finds_nothing_of_one_beside_it():
    async with Sandbox(launch(likely_isolation()), spares=2) as sandbox:
        write = "import time\nopen('/tmp/mine', 'w').write('x')\ntime.sleep(1.5)\nopen('/tmp/mine').read()"
        look = "import os, time\ntime.sleep(0.7)\n(os.listdir('/tmp'), os.getpid())"
        written, looked = await asyncio.gather(sandbox.run(program(write)), sandbox.run(program(look)))
    assert isinstance(written, Ran)
    assert written.value == "x"
    assert isinstance(looked, Ran)
    assert looked.value == [[], 2]


SERVER = """
import asyncio, sys
from mcprl_market.python.launch import choose_launch
from mcprl_market.python.programs import Limits
from mcprl_market.python.programs import Program, Step
from mcprl_market.python.sandbox import Sandbox

async def main():
    limits = Limits(cpu_s=600, deadline_s=600.0)
    async with Sandbox(choose_launch(limits, allow_unsafe=False), spares=2) as sandbox:
        await sandbox.pool.full()
        code = "import signal\\nfor n in range(1, 32):\\n    try: signal.signal(n, signal.SIG_IGN)\\n"
        code += "    except OSError: pass\\nwhile True: pass"
        running = asyncio.create_task(sandbox.run(Program(steps=(Step(name="code", code=code),), names={})))
        await asyncio.sleep(0)  # it takes a worker now
        await sandbox.pool.full()
        print("running", flush=True)
        await running

asyncio.run(main())
"""


STARTING_SERVER = """
import asyncio
from mcprl.processes.guard import GUARD
from mcprl_market.python.launch import choose_launch
from mcprl_market.python.programs import Limits
from mcprl_market.python.sandbox import Sandbox

async def main():
    launch = choose_launch(Limits(), allow_unsafe=False)
    print(GUARD.start(), flush=True)
    while True:
        async with Sandbox(launch, spares=4):
            await asyncio.sleep(0.02)

asyncio.run(main())
"""


def marked(mark: str) -> list[int]:
    """Processes with this in the environment that they were started with."""
    found: list[int] = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


async def test_nothing_outlives_a_server_that_is_killed_while_workers_start():
    marks: list[str] = []
    for early_s in (0.0, 0.005, 0.01, 0.015, 0.03):
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTING_SERVER, stdout=asyncio.subprocess.PIPE
        )
        assert server.stdout is not None
        marks.append((await server.stdout.readline()).decode().strip())
        await asyncio.sleep(early_s)
        server.kill()
        await server.wait()
    # One that was just being started may show up late, and then ends by itself.
    await asyncio.sleep(2)
    async with asyncio.timeout(60):
        while any(marked(mark) for mark in marks):  # noqa: ASYNC110 - the end of someone else's child sets no event
            await asyncio.sleep(0.1)


async def test_nothing_is_left_of_a_worker_that_is_ended_while_it_starts(monkeypatch):
    monkeypatch.setattr("mcprl.processes.guard._STRAYS_END_S", 60.0)
    for number in range(30):
        worker = WorkerProcess(launch(ISOLATIONS[number % len(ISOLATIONS)]), Kind.PLAIN)
        async with asyncio.timeout(60):
            while not (marks := [name for name in environment(worker.pid) if name.startswith(CHILD_MARK)]):  # noqa: ASYNC110
                await asyncio.sleep(0)
        (mark,) = marks
        await asyncio.sleep(number / 2000)
        worker.kill()
        await worker.gone()
        assert marked(mark) == []


def environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text().split("\0")


async def test_nothing_outlives_a_server_that_is_killed():
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    assert await server.stdout.readline() == b"running\n"
    seen = psutil.Process(server.pid).children(recursive=True)
    namespaces = namespaces_of(seen)
    assert len(namespaces) >= 5
    server.kill()
    await server.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, seen, timeout=60)
    assert alive == []
