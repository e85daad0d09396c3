"""Starts a worker: in the sandbox, or as a plain process if the user allows that."""

from __future__ import annotations

import logging
import marshal
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mcprl.errors import SandboxMissingError
from mcprl.processes import CHILD_MARK, OWNER_MARK
from mcprl.processes.bubblewrap import ALLOW_NAMESPACES, NAMESPACES, NO_NETWORK, find_bubblewrap
from mcprl.processes.guard import GUARD, kill_marked
from mcprl.processes.seccomp import MACHINES
from mcprl_market.python.programs import Limits
from mcprl_market.python.runtime import DEVICES, INTERPRETER, PACKAGES, Runtime, find_runtime, package_folders
from mcprl_market.python.seccomp import make_filter

_UNSAFE = "start the server with allow_unsafe if you trust the code"
_FIRST_USER = 0x70000000
_NUM_USERS = 0x0FFFFFFF
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/lib",
    "PYTHONHOME": "/python",
    "PYTHONHASHSEED": "0",  # so that sets of strings have the same order in every run
    "MALLOC_ARENA_MAX": "2",  # an arena reserves 64 MiB of address space, which counts towards RLIMIT_AS
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Isolation(StrEnum):
    """How the worker drops its privileges."""

    OWN_USER = "own_user"
    USER_NAMESPACE = "user_namespace"


def likely_isolation() -> Isolation:
    """Use a fresh user id if we are root and such ids exist here. They do not in a container that maps few ids."""
    if os.geteuid() != 0:
        return Isolation.USER_NAMESPACE
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_USER and first + count >= _FIRST_USER + _NUM_USERS:
            return Isolation.OWN_USER
    return Isolation.USER_NAMESPACE


def fresh_user() -> int:
    """Return a user id for one worker, from a range that distributions leave unused."""
    return _FIRST_USER + secrets.randbelow(_NUM_USERS)


def find_usable_bubblewrap() -> str:
    """Return the path of `bwrap`. Raises SandboxMissingError if this machine cannot run a sandbox."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SandboxMissingError(
            f"the Python sandbox needs Linux on {' or '.join(MACHINES)}, but this machine is {sys.platform} "
            f"{platform.machine()}",
            fix=f"run the Python server on such a machine, or {_UNSAFE}",
        )
    if not Path("/proc/sys/kernel/seccomp").exists():
        raise SandboxMissingError(
            "this kernel has no seccomp, which the Python sandbox needs",
            fix=f"use a kernel with CONFIG_SECCOMP_FILTER, or {_UNSAFE}",
        )
    return find_bubblewrap("the Python sandbox", _UNSAFE)


def sandbox_command(
    bubblewrap: str, runtime: Runtime, isolation: Isolation, limits: Limits, *, result_pipe: int, info_file: int
) -> list[str]:
    """Return the command line of one worker.

    It omits --die-with-parent on purpose: if that killed bubblewrap during setup, the sandbox's first process would
    stay behind and wait forever.
    """
    command = [bubblewrap, *NAMESPACES, NO_NETWORK, "--new-session", "--clearenv"]
    command += ["--info-fd", str(info_file), "--cap-drop", "ALL"]
    if isolation is Isolation.OWN_USER:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    for folder in runtime.folders:
        # Create the folders first: bubblewrap would create them for its own user only.
        command += ["--perms", "0755", "--dir", folder]
    for inside, outside in runtime.shown.items():
        command += ["--ro-bind", str(outside), inside]
    for folder in runtime.hidden:
        command += ["--perms", "0555", "--tmpfs", folder]
    for device in DEVICES:
        # bubblewrap cannot bind a device read-only. If the code owned the device, it could chmod it for the whole
        # machine.
        if isolation is Isolation.OWN_USER or Path(device).stat().st_uid != os.geteuid():
            command += ["--dev-bind", device, device]
    command += ["--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/"]
    for folder in runtime.hidden:
        command += ["--remount-ro", folder]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return [*command, "--", INTERPRETER, "-P", "-s", "-S", "-B", "-X", "utf8", runtime.worker, str(result_pipe)]


_logger = logging.getLogger(__name__)

_PROBE_S = 30.0


class Kind(StrEnum):
    """What a worker imports in advance. This affects how fast a program starts, not what it can do."""

    PLAIN = "plain"
    PANDAS = "pandas"


_PRELOAD = {Kind.PLAIN: {}, Kind.PANDAS: {"np": "numpy", "pd": "pandas"}}


def framed(message: bytes) -> bytes:
    """Encode a message to a worker: its length in four bytes, then its bytes."""
    return len(message).to_bytes(4, "big") + message


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start workers. Without `bubblewrap`, they are plain processes with resource limits only.

    Launch(limits=Limits(), bubblewrap="/usr/bin/bwrap", isolation=Isolation.OWN_USER)
    """

    limits: Limits
    bubblewrap: str | None
    isolation: Isolation = Isolation.USER_NAMESPACE

    @property
    def is_sandboxed(self) -> bool:
        return self.bubblewrap is not None

    def start(
        self, mark: str, *, stdin: int, stdout: int, stderr: int, result_pipe: int, info_file: int
    ) -> subprocess.Popen[bytes]:
        """Start a worker with these ends of its pipes. This process keeps them open too.

        Its environment has the marks of `mcprl.processes`, by which the guard finds it after our process ends. The code
        inside never sees them. A worker that waits for a program ends on its own when our process ends.
        """
        if self.bubblewrap is None:
            command = _plain_command(result_pipe)
        else:
            command = sandbox_command(
                self.bubblewrap,
                find_runtime(),
                self.isolation,
                self.limits,
                result_pipe=result_pipe,
                info_file=info_file,
            )
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(result_pipe, info_file),
            env={"PYTHONHASHSEED": "0", OWNER_MARK: GUARD.start(), CHILD_MARK: mark},
            cwd="/",
            start_new_session=True,
        )

    def setup(self, kind: Kind) -> bytes:
        """Encode the first message to a worker: its limits, its filter, and what to import."""
        limits = self.limits
        bounds = {
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_CORE": 0,
        }
        if self.is_sandboxed:  # outside the sandbox, the limit would count all processes of the user
            bounds["RLIMIT_NPROC"] = limits.threads + 2
        message: dict[str, Any] = {
            "limits": bounds,
            "user": fresh_user() if self.is_sandboxed and self.isolation is Isolation.OWN_USER else None,
            "filter": make_filter(platform.machine()) if self.is_sandboxed else None,
            "packages": [PACKAGES] if self.is_sandboxed else list(package_folders()),
            "preload": _PRELOAD[kind],
            "result_bytes": limits.result_bytes,
        }
        return framed(marshal.dumps(message))


def choose_launch(limits: Limits, *, allow_unsafe: bool) -> Launch:
    """Return the sandbox if a trial start works. Otherwise, use plain processes if the user allows that, else raise."""
    try:
        launch = Launch(limits=limits, bubblewrap=find_usable_bubblewrap(), isolation=likely_isolation())
        find_runtime()
        _probe(launch)
    except SandboxMissingError as error:
        if not allow_unsafe:
            raise
        _logger.warning(
            "THE PYTHON SERVER RUNS WITHOUT A SANDBOX (%s). Code written by a policy can read and change all files "
            "of this user, including tasks and keys, use the network, leave processes behind, and send signals to "
            "other processes. Only CPU time, memory, file sizes and output are limited.",
            error.what,
        )
        return Launch(limits=limits, bubblewrap=None)
    return launch


def _probe(launch: Launch) -> None:
    """Start one worker and wait until it is ready. If it fails, raise SandboxMissingError with its error output."""
    result_read, result_write = os.pipe()
    with open(os.devnull, "wb") as nowhere, os.fdopen(result_read, "rb") as result:
        process = launch.start(
            mark := secrets.token_hex(16),
            stdin=subprocess.PIPE,
            stdout=nowhere.fileno(),
            stderr=subprocess.PIPE,
            result_pipe=result_write,
            info_file=nowhere.fileno(),
        )
        os.close(result_write)
        try:
            # Its input ends after this message, so the worker ends too.
            _, said = process.communicate(launch.setup(Kind.PLAIN), timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            kill_marked(mark)
            said = process.communicate()[1]
        is_ready = result.read() == framed(b"ready")
    if not is_ready:
        lines = said.decode(errors="replace").strip().splitlines()
        raise SandboxMissingError(
            f"this machine cannot create the Python sandbox: {lines[-1] if lines else 'a worker did not become ready'}",
            fix=f"{ALLOW_NAMESPACES}, or {_UNSAFE}",
        )


def _plain_command(result_pipe: int) -> Sequence[str]:
    worker = Path(__file__).with_name("worker.py")
    return [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(worker), str(result_pipe)]
