"""A child process: its start, its pipes, its log and its end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mcprl.errors import UnfitEngineError
from mcprl.processes.guard import CHILD_MARK, GUARD, OWNER_MARK, kill_marked, limit_of
from mcprl.secrets import SECRETS

_SYSTEMS = {"darwin": "macOS", "win32": "Windows"}


def require_linux() -> None:
    """Raise UnfitEngineError unless the operating system is Linux, which training needs."""
    if sys.platform != "linux":
        raise UnfitEngineError(
            f"this is {_SYSTEMS.get(sys.platform, sys.platform)}, but training needs Linux: on other systems, GPUs "
            "(through MPS, for example) are not supported, and tool servers could keep running after a run ends",
            fix="train on Linux, for example on another machine, in a container or, on Windows, in WSL 2",
        )


_logger = logging.getLogger(__name__)

_READ_BYTES = 65536
_MAX_LINE_CHARS = 65536
_CUT_SLACK_BYTES = 4096
_MAX_LOG_BYTES = 16 * 1024 * 1024


class CleanedLog:
    """Appends a child's output to a file of limited size, and cleans each line first. Never blocks the child."""

    def __init__(self, path: Path, clean: Callable[[str], str | None]) -> None:
        self._clean = clean
        self._file = path.open("ab", buffering=0)
        self._read_end, self.write_end = os.pipe()  # the child's end; who opens it closes it
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)
        self._line = bytearray()
        self._room = _MAX_LOG_BYTES
        self._is_full = False

    def close(self) -> None:
        if not self._file.closed:
            self.read_rest()
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._file.close()

    def read_rest(self) -> None:
        """After the child has ended, read the rest of its output, including an unfinished last line."""
        while self._read():
            pass
        if self._line:
            self._end_line()

    def _read(self) -> bool:
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._read_end)
        elif not self._is_full:
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._extend(line)
                self._end_line()
            self._extend(rest)
        return bool(data)

    def _extend(self, part: bytes) -> None:
        # Keep a little more than is shown, so that `clean` sees the whole of a secret at the cut.
        self._line += part[: _MAX_LINE_CHARS + _CUT_SLACK_BYTES - len(self._line)]

    def _end_line(self) -> None:
        line = self._clean(self._line.decode(errors="replace"))
        self._line.clear()
        if line is None:
            return
        if len(line) > _MAX_LINE_CHARS:
            line = f"{line[:_MAX_LINE_CHARS]} [line cut]"
        data = f"{line}\n".encode(errors="replace")
        self._room -= len(data)
        if self._is_full:
            return
        if self._room < 0:
            self._is_full = True
            data = b"[log full: the rest is dropped]\n"
        try:
            self._file.write(data)
        except OSError as error:
            self._is_full = True
            _logger.warning(
                "the log %s cannot be written, so the rest of the output is dropped: %s", self._file.name, error
            )


_LONGEST_FOLDER_BYTES = 40
"""The path of a Unix socket may have at most 107 bytes on Linux, 103 on macOS. This leaves about 60 for its name, as
Ray needs."""


@contextmanager
def private_folder() -> Generator[Path]:
    """Create an empty folder with mode 0700 and a short path. It is removed at the end, with everything in it.

    It is in XDG_RUNTIME_DIR if we own that folder, otherwise in the folder for temporary files. The mode prevents every
    other user (except root) from opening anything inside, whatever the modes of the files and sockets in it.
    """
    with tempfile.TemporaryDirectory(prefix="mcprl-", dir=_parent(), ignore_cleanup_errors=True) as name:
        yield Path(name)


def _parent() -> Path:
    runtime, temporary = Path(os.environ.get("XDG_RUNTIME_DIR", "")), Path(tempfile.gettempdir())
    if runtime.is_absolute() and _is_ours(runtime) and _is_short(runtime):
        return runtime
    return temporary if _is_short(temporary) else Path("/tmp")


def _is_ours(folder: Path) -> bool:
    """Return True if we own the folder. After `sudo`, XDG_RUNTIME_DIR may still name another user's folder."""
    return folder.is_dir() and folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len("/mcprl-12345678") <= _LONGEST_FOLDER_BYTES


_PR_SET_PDEATHSIG = 1
_INPUT_END_S = 1.0
_POLL_S = 0.01
_TAIL_BYTES = 65536
# Loaded before any fork, because a child must not allocate or import between fork and exec.
_LIBC: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _bind_to(parent: int, limit: int) -> Callable[[], None]:
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1] if sys.platform == "linux" else 0

    def between_fork_and_exec() -> None:
        if hard == resource.RLIM_INFINITY:  # otherwise, only the marks in the environment remain
            resource.setrlimit(resource.RLIMIT_RTTIME, (limit, hard))
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # If the parent died before the line above, no signal is sent.
            if os.getppid() != parent:
                os._exit(1)

    return between_fork_and_exec


def free_port() -> int:
    """Return a TCP port on loopback that is free now. Bind it soon, because nothing reserves it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def search_path() -> str:
    """Return the PATH for children. This Python's folder is first, so `mcprl serve` works without an active venv."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class ChildProcess:
    """One child and its descendants, to be used in the event loop of `start`. Its output is appended to a log file."""

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
            self._loop.add_reader(self._pidfd, self._on_end)
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
        clean: Callable[[str], str | None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> ChildProcess:
        """Start `argv`. Its environment is exactly `env` plus our two marks. It inherits the files in `pass_fds`.

        With `pipes`, its stdin and stdout are connected to us, and only stderr is logged. With `clean`, every line of
        the log passes through that function, and the log is limited in size; otherwise the child writes to the file
        directly. Raises OSError if the program cannot be executed.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        owner, mark = GUARD.start(), secrets.token_hex(16)
        with contextlib.ExitStack() as on_failure:
            cleaned = None if clean is None else CleanedLog(log, clean)
            if cleaned is not None:
                on_failure.callback(cleaned.close)
            with log.open("ab") if cleaned is None else os.fdopen(cleaned.write_end, "wb") as output:
                process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's would reap the child too early
                    list(argv),
                    env={**env, OWNER_MARK: owner, CHILD_MARK: mark},
                    cwd=cwd,
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else output,
                    stderr=output,
                    bufsize=0,
                    start_new_session=True,
                    pass_fds=pass_fds,
                    preexec_fn=_bind_to(os.getpid(), limit_of(owner, mark)),
                )
            on_failure.pop_all()
        GUARD.watch(process.pid)
        return cls(process, mark, log, cleaned)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the process runs, the negative signal number if a signal ended it."""
        return self._exit_code

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end of the child's stdin, if it was started with pipes. Unbuffered; `stop` closes it."""
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes] | None:
        """Our end of the child's stdout, if it was started with pipes. Unbuffered; `stop` closes it."""
        return self._process.stdout

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child, but not to its descendants."""
        if self._exit_code is None:
            os.kill(self._process.pid, number)

    async def wait(self) -> int:
        await self._exited.wait()
        assert self._exit_code is not None
        return self._exit_code

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the child and all its descendants. It is safe to call this again.

        If the child has pipes, close stdin first, as MCP requires. Then send SIGTERM, and SIGKILL after `grace_s`.
        """
        try:
            with _dropped_output(self._process.stdout):
                await self._ask_to_end(grace_s)
        finally:
            self._signal_group(signal.SIGKILL)
        await self._exited.wait()
        await asyncio.to_thread(kill_marked, self._mark)
        if self._cleaned is not None:
            self._cleaned.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the log, with secrets redacted, for an error message."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return SECRETS.redact(tail)

    async def _ask_to_end(self, grace_s: float) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
            if await self.ends_within(_INPUT_END_S):
                return
        self._signal_group(signal.SIGTERM)
        await self.ends_within(grace_s)

    async def ends_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for the child to end. Return whether it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), seconds)
        return self._exited.is_set()

    def _poll(self) -> None:
        if self._process.poll() is None:
            self._loop.call_later(_POLL_S, self._poll)
        else:
            self._on_end()

    def _on_end(self) -> None:
        """End the child's group before reaping the child, because reaping frees its process id."""
        self._signal_group(signal.SIGKILL)
        GUARD.forget(self._process.pid)
        if sys.platform == "linux":
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._exit_code = self._process.wait()
        if self._cleaned is not None:
            self._cleaned.read_rest()
        self._exited.set()

    def _signal_group(self, signal_number: signal.Signals) -> None:
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal_number)


@contextlib.contextmanager
def _dropped_output(pipe: IO[bytes] | None) -> Generator[None]:
    """Read and drop output, because a child that is blocked on a full pipe cannot end."""
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
