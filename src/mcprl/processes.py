"""Child processes that never outlive us, nor do their own children, however we end.

Each runs in a process group of its own. The kernel kills the child when we die; a guard, a shell that waits for the end
of a pipe whose other end only we hold, then kills the rest of the group. Used for the servers that mcprl itself starts:
tool servers over HTTP, and vLLM, whose engine is a process behind its server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ChildProcess", "free_port", "search_path"]

_PR_SET_PDEATHSIG = 1
_GUARD = 'read -r _; kill -s KILL -- "-$0"'


def _load_prctl() -> ctypes.CDLL | None:
    # Loaded before any fork: between fork and exec a child must not allocate or import.
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBC = _load_prctl()


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def free_port() -> int:
    """A TCP port on loopback that is free now. Bind it soon: nothing reserves it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def search_path() -> str:
    """PATH for children, with the folder of the running Python in front: `mcprl serve` is found without activation."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


class ChildProcess:
    """One child and its descendants, started in a process group of its own, its output appended to a log file."""

    def __init__(self, process: asyncio.subprocess.Process, guard: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._guard = guard
        self.log = log

    @classmethod
    async def start(cls, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> ChildProcess:
        """Start `argv` with exactly `env`. Raises OSError where the program cannot be executed."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        guard = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _GUARD, str(process.pid), stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        return cls(process, guard, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs."""
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the whole process group: SIGTERM, then SIGKILL after `grace_s`. Safe to call again."""
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace_s)
        # Descendants may outlive the leader, so the group is killed even where the leader went quietly.
        self._signal_group(signal.SIGKILL)
        await self._process.wait()
        # Last, and before its pipe closes: it must not signal a group whose number may be given out again.
        with contextlib.suppress(ProcessLookupError):
            self._guard.kill()
        await self._guard.wait()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, for an error message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal_group(self, signal_number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal_number)
