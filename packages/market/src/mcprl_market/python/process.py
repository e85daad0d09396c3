"""One worker, as controlled from outside: its start, the one program it runs, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import secrets
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcprl.errors import SandboxLostError
from mcprl.processes.guard import kill_marked
from mcprl_market.python.launch import Kind, Launch, framed
from mcprl_market.python.programs import FailureKind
from mcprl_market.python.seccomp import KILLED_STATUS

_READ_BYTES = 1 << 16


class Inlet:
    """Reads a pipe to its end and keeps the first `bound` bytes. Calls `on_data` after each read.

    Bytes beyond the bound are read and dropped, so that the writer never blocks.
    """

    def __init__(self, fd: int, bound: int, on_data: Callable[[], None]) -> None:
        self.kept = bytearray()
        self.is_over = False
        self._fd: int | None = fd
        self._bound = bound
        self._on_data = on_data
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def read_what_is_there(self) -> None:
        """Read the data that is in the pipe now, up to the bound, because the writer may never stop."""
        while self._fd is not None and not self.is_over and self._read():
            pass

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read(self) -> bool:
        assert self._fd is not None
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        room = self._bound - len(self.kept)
        self.kept += data[:room]
        self.is_over = self.is_over or len(data) > room
        self._on_data()
        return True


class Outlet:
    """Writes messages to a pipe as fast as it accepts them. A closed reader is not an error here."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._rest = memoryview(b"")
        self._closes = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)

    def send(self, message: bytes, *, last: bool = False) -> None:
        """Write a message; with `last`, close the pipe after it. Await the reader's reply before the next call."""
        self._rest = memoryview(message)
        self._closes = last
        if self._fd is not None:
            self._loop.add_writer(self._fd, self._write)
            self._write()

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        assert self._fd is not None
        try:
            with contextlib.suppress(BlockingIOError):
                while self._rest:
                    self._rest = self._rest[os.write(self._fd, self._rest) :]
        except BrokenPipeError:
            self._rest = memoryview(b"")
        if self._rest:
            return
        self._loop.remove_writer(self._fd)
        if self._closes:
            self.close()


_READY = framed(b"ready")
_HEADER_BYTES = 4
_STDERR_TAIL_CHARS = 500
_DISK_POLL_S = 0.05
_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a worker ended: its report, the limit that it exceeded, or else its exit status.

    Ending(report=b'{"value": 6}', broken=None, status=None, stdout=b"", stderr=b"")
    """

    report: bytes | None
    broken: FailureKind | None
    status: int | None
    stdout: bytes
    stderr: bytes


class WorkerProcess:
    """One worker process. It runs at most one program, and belongs to the event loop that started it."""

    def __init__(self, launch: Launch, kind: Kind) -> None:
        self.kind = kind
        self._launch = launch
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._status: int | None = None
        self._init_pidfd: int | None = None
        self._disk: int | None = None
        self._mark = secrets.token_hex(16)
        ours: list[int] = []
        theirs: list[int] = []
        for _ in range(3):
            read_end, write_end = os.pipe()
            ours.append(read_end)
            theirs.append(write_end)
        program_read, program_write = os.pipe()
        # A file, not a pipe: bubblewrap writes to it during setup, and would die there if our process had ended.
        self._info = os.open(os.devnull, os.O_RDWR) if not launch.is_sandboxed else os.memfd_create("worker")
        try:
            out, err, result = theirs
            self._process = launch.start(
                self._mark, stdin=program_read, stdout=out, stderr=err, result_pipe=result, info_file=self._info
            )
        except OSError as error:
            for fd in (*ours, program_write, self._info):
                os.close(fd)
            raise SandboxLostError(
                f"a worker of the Python sandbox did not start: {error}", fix="check that bubblewrap is installed"
            ) from error
        finally:
            for fd in (*theirs, program_read):
                os.close(fd)
        limits = launch.limits
        self._stdout = Inlet(ours[0], limits.output_bytes, self._changed.set)
        self._stderr = Inlet(ours[1], limits.output_bytes, self._changed.set)
        self._result = Inlet(ours[2], len(_READY) + _HEADER_BYTES + limits.result_bytes, self._changed.set)
        self._program = Outlet(program_write)
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._note_end)
        self._program.send(launch.setup(kind))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def is_alive(self) -> bool:
        """Ask the kernel whether it still runs. The kernel notices the end before the event loop does."""
        if self.has_ended:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    async def ready(self, deadline_s: float) -> None:
        """Wait until the worker can accept a program. Raises SandboxLostError if it does not become ready."""
        try:
            async with asyncio.timeout(deadline_s):
                while bytes(self._result.kept) != _READY:
                    if self.has_ended:
                        raise self._lost("did not become ready")
                    await self._next_change()
        except TimeoutError:
            raise self._lost(f"was not ready after {deadline_s:g} s") from None
        if self._launch.is_sandboxed:
            try:
                # The first process of the sandbox. When it ends, the kernel kills all others inside.
                first = json.loads(os.pread(self._info, 4096, 0))["child-pid"]
                self._init_pidfd = os.pidfd_open(first)
                self._disk = os.open(f"/proc/{first}/root/tmp", os.O_PATH)
            except (OSError, ValueError, KeyError) as error:
                raise self._lost(f"exited immediately after it became ready ({error})") from error
            if self.has_ended:  # the outer process; inner processes may still run
                raise self._lost("ended immediately after it became ready")

    async def run(self, program: bytes) -> Ending:
        """Run the program, then end the worker, whatever happened.

        Raises SandboxLostError only for failures that the program cannot cause: bubblewrap's outer process, which it
        cannot reach, was killed, or the kernel counted an out-of-memory kill. Any other failure is the program's fault.
        """
        self._result.kept.clear()
        oom_kills = _oom_kills()
        try:
            if self.has_ended:
                raise self._lost("exited before it received a program")
            self._program.send(framed(program), last=True)
            broken = await self._finish()
        finally:
            self.kill()
        report = self._report()
        if self._launch.is_sandboxed and report is None and broken is None and self._status is not None:
            if self._status < 0:
                raise self._lost(f"was killed from outside (status {self._status})")
            if self._status == KILLED_STATUS and _oom_kills() > oom_kills:
                raise self._lost("was killed because the machine ran out of memory")
        for inlet in (self._stdout, self._stderr):
            inlet.read_what_is_there()
        if broken is None and (self._stdout.is_over or self._stderr.is_over):
            broken = FailureKind.OUTPUT
        stdout, stderr = bytes(self._stdout.kept), bytes(self._stderr.kept)
        return Ending(report=report, broken=broken, status=self._status, stdout=stdout, stderr=stderr)

    def kill(self) -> None:
        """Kill everything in the sandbox. `gone` waits until that is done. It is safe to call this again."""
        with contextlib.suppress(ProcessLookupError):
            if self._init_pidfd is not None:
                # Even if the outer process has ended, because the first process inside waits for processes that the
                # code started.
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            elif not self.has_ended:
                os.killpg(self._process.pid, signal.SIGKILL)

    async def gone(self) -> None:
        """Wait until all processes of the worker have ended, and close its files."""
        await self._ended.wait()
        if self._init_pidfd is not None:
            await _readable(self._init_pidfd)
            os.close(self._init_pidfd)
            self._init_pidfd = None
        else:
            # Ended during bubblewrap's setup: its children may not be tied to it yet.
            await asyncio.to_thread(kill_marked, self._mark)
        if self._disk is not None:
            os.close(self._disk)
            self._disk = None
        for pipe in (self._stdout, self._stderr, self._result, self._program):
            pipe.close()
        if self._info >= 0:
            os.close(self._info)
            self._info = -1

    async def _finish(self) -> FailureKind | None:
        """Wait for a report or the end of the process. Return the limit if one was exceeded first."""
        try:
            async with asyncio.timeout(self._launch.limits.deadline_s):
                while self._report() is None:
                    if self._report_size() > self._launch.limits.result_bytes:
                        return FailureKind.RESULT
                    if self.has_ended:
                        return None
                    if self._stdout.is_over or self._stderr.is_over:
                        return FailureKind.OUTPUT
                    if self._has_too_many_files():
                        return FailureKind.DISK
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_DISK_POLL_S):
                            await self._next_change()
        except TimeoutError:
            return FailureKind.DEADLINE
        return None

    def _report_size(self) -> int:
        """Return the size of the first message, from its header."""
        return int.from_bytes(self._result.kept[:_HEADER_BYTES], "big")

    def _report(self) -> bytes | None:
        """Return the first complete message. Anything that the code wrote after it is ignored."""
        kept = self._result.kept
        size = self._report_size()
        if len(kept) < _HEADER_BYTES or not size <= len(kept) - _HEADER_BYTES:
            return None
        return bytes(kept[_HEADER_BYTES : _HEADER_BYTES + size])

    def _has_too_many_files(self) -> bool:
        """Return True if the sandbox has too many files. No process limit covers the kernel memory that files use."""
        if self._disk is None:
            return False
        usage = os.fstatvfs(self._disk)
        return usage.f_files - usage.f_ffree > self._launch.limits.disk_files

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _note_end(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._launch.is_sandboxed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._status = self._process.wait()
        self._result.read_what_is_there()
        self._ended.set()
        self._changed.set()

    def _lost(self, what: str) -> SandboxLostError:
        self._stderr.read_what_is_there()
        said = bytes(self._stderr.kept).decode(errors="replace").strip()[-_STDERR_TAIL_CHARS:]
        return SandboxLostError(
            f"a worker of the Python sandbox {what}{': ' if said else ''}{said}",
            fix="check that the machine has free memory and that bubblewrap works: run `bwrap --ro-bind / / true`",
        )


def _oom_kills() -> int:
    """Return how many processes the out-of-memory killer has killed. Counts only our cgroup if the kernel can."""
    counter = _oom_counter()
    return 0 if counter is None else int(_OOM_KILLS.findall(counter.read_text())[0])


@functools.cache
def _oom_counter() -> Path | None:
    """Return the file that counts out-of-memory kills in our cgroup, or on the machine; None on old kernels."""
    root = Path("/sys/fs/cgroup")
    found = [Path("/proc/vmstat")]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.insert(0, root / path[1:] / "memory.events")
        elif "memory" in controllers.split(","):
            found.insert(0, root / "memory" / path[1:] / "memory.oom_control")
    return next((file for file in found if file.is_file() and _OOM_KILLS.search(file.read_text())), None)


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_reader(fd, lambda: done.done() or done.set_result(None))
    try:
        await done
    finally:
        loop.remove_reader(fd)
