"""One child process of ours: its start, its pipes, its log, its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import IO

from mcprl.processes.guard import CHILD_MARK, GUARD, OWNER_MARK, kill_marked
from mcprl.processes.logs import CleanedLog

__all__ = ["ChildProcess", "free_port", "search_path"]

_PR_SET_PDEATHSIG = 1
_INPUT_END_S = 1.0
_POLL_S = 0.01
_READ_BYTES = 65536
_TAIL_BYTES = 65536


def _load_prctl() -> ctypes.CDLL | None:
    # Loaded before any fork: between fork and exec a child must not allocate or import.
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBC = _load_prctl()


def _die_with(parent: int) -> Callable[[], None]:
    def between_fork_and_exec() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # The parent may have died before the line above: then no signal comes.
            if os.getppid() != parent:
                os._exit(1)

    return between_fork_and_exec


def free_port() -> int:
    """A TCP port on loopback that is free now. Bind it soon: nothing reserves it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def search_path() -> str:
    """PATH for children, with the folder of the running Python in front: `mcprl serve` is found without activation."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class ChildProcess:
    """One child and its descendants, its output appended to a log file. Belongs to the event loop that started it."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, log: Path, cleaned: CleanedLog | None) -> None:
        self.log = log
        self._process = process
        self._mark = mark
        self._cleaned = cleaned
        self._exit_code: int | None = None
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if sys.platform == "linux":
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._note_end)
        else:
            self._poll()

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: str | None = None,
        pipes: bool = False,
        clean: Callable[[str], str] | None = None,
    ) -> ChildProcess:
        """Start `argv` with `env`, plus our two marks, as its whole environment.

        With `pipes` its standard input and output are ours, and only its errors are logged. With `clean` every line of
        the log passes through it first, and the log is bounded; without, the child writes into the file by itself.
        Raises OSError where the program cannot be executed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        owner, mark = GUARD.start(), secrets.token_hex(16)
        with contextlib.ExitStack() as on_failure:
            cleaned = None if clean is None else CleanedLog(log, clean)
            if cleaned is not None:
                on_failure.callback(cleaned.close)
            with log.open("ab") if cleaned is None else os.fdopen(cleaned.take_write_end(), "wb") as output:
                process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own would do the same, and take note of its end too early
                    list(argv),
                    env={**env, OWNER_MARK: owner, CHILD_MARK: mark},
                    cwd=cwd,
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else output,
                    stderr=output,
                    bufsize=0,
                    start_new_session=True,
                    preexec_fn=_die_with(os.getpid()),
                )
            on_failure.pop_all()
        GUARD.watch(process.pid)
        return cls(process, mark, log, cleaned)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; minus the signal where one ended it."""
        return self._exit_code

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end of the child's standard input, where it was started with pipes. Unbuffered; `stop` closes it."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Our end of the child's standard output, where it was started with pipes. Unbuffered; `stop` closes it."""
        return self._process.stdout

    async def wait(self) -> int:
        await self._exited.wait()
        assert self._exit_code is not None
        return self._exit_code

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the child and all its descendants. Safe to call again.

        A child with pipes is first told by the end of its input, as MCP asks. Then SIGTERM, SIGKILL after `grace_s`.
        """
        try:
            with _dropped_output(self._process.stdout):
                await self._ask_to_end(grace_s)
        finally:
            self._signal_group(signal.SIGKILL)
        await self._exited.wait()
        await asyncio.to_thread(kill_marked, f"{CHILD_MARK}={self._mark}")
        if self._cleaned is not None:
            self._cleaned.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, for an error message."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    async def _ask_to_end(self, grace_s: float) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
            if await self.ends_within(_INPUT_END_S):
                return
        self._signal_group(signal.SIGTERM)
        await self.ends_within(grace_s)

    async def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, now or after so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)
        return self._exited.is_set()

    def _poll(self) -> None:
        if self._process.poll() is None:
            self._loop.call_later(_POLL_S, self._poll)
        else:
            self._note_end()

    def _note_end(self) -> None:
        """End the child's group, and only then let the kernel give its number to another process."""
        self._signal_group(signal.SIGKILL)
        GUARD.forget(self._process.pid)
        if sys.platform == "linux":
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._exit_code = self._process.wait()
        if self._cleaned is not None:
            self._cleaned.read_what_is_there()
        self._exited.set()

    def _signal_group(self, signal_number: signal.Signals) -> None:
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal_number)


@contextlib.contextmanager
def _dropped_output(pipe: IO[bytes] | None) -> Generator[None]:
    """Read and drop what comes: a child that waits for its output to be read could not end."""
    if pipe is None or pipe.closed:
        yield
        return
    loop, fd = asyncio.get_running_loop(), pipe.fileno()
    os.set_blocking(fd, False)

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(fd, _READ_BYTES):
                loop.remove_reader(fd)

    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
