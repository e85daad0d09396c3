"""The command that builds a sandbox: namespaces of its own, a root folder with only what `runtime` lists, one user.

Where mcprl runs as root, every worker gets a user id that nothing else on the machine has: limits that the kernel
counts by user then count for it alone, and root's own exemption from them is gone. bubblewrap stays root until the root
folder is made, so that folders which only root may enter can be shown; the worker then gives up root by itself. Where
mcprl runs as another user, the worker has that user's id in a user namespace, in which it may do nothing.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
from enum import StrEnum
from pathlib import Path

from mcprl.errors import SandboxMissingError
from mcprl.servers.python.limits import Limits
from mcprl.servers.python.runtime import DEVICES, INTERPRETER, Runtime
from mcprl.servers.python.seccomp import MACHINES

__all__ = ["Isolation", "find_bubblewrap", "fresh_user", "likely_isolation", "sandbox_command"]

_UNSAFE = "start the server with allow_unsafe for code that you trust"
_FIRST_USER = 0x70000000
_NUM_USERS = 0x0FFFFFFF
_NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/lib",
    "PYTHONHOME": "/python",
    "PYTHONHASHSEED": "0",  # sets of texts come in the same order in every run
    "MALLOC_ARENA_MAX": "2",  # an arena reserves 64 MiB of addresses, which count as memory
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Isolation(StrEnum):
    """How the worker loses its rights."""

    OWN_USER = "own_user"
    USER_NAMESPACE = "user_namespace"


def likely_isolation() -> Isolation:
    """A user of its own where we are root and such users exist here: not so in a container that maps only some."""
    if os.geteuid() != 0:
        return Isolation.USER_NAMESPACE
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_USER and first + count >= _FIRST_USER + _NUM_USERS:
            return Isolation.OWN_USER
    return Isolation.USER_NAMESPACE


def fresh_user() -> int:
    """A user id for one worker, from a range that distributions leave unused."""
    return _FIRST_USER + secrets.randbelow(_NUM_USERS)


def find_bubblewrap() -> str:
    """The path of `bwrap`. Raises SandboxMissingError where there can be no sandbox at all."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SandboxMissingError(
            f"the Python sandbox runs on Linux on {' and '.join(MACHINES)}, not on {sys.platform} {platform.machine()}",
            fix=f"serve Python from such a machine, or {_UNSAFE}",
        )
    if not Path("/proc/sys/kernel/seccomp").exists():
        raise SandboxMissingError(
            "this kernel has no seccomp, which the Python sandbox needs",
            fix=f"use a kernel with CONFIG_SECCOMP_FILTER, or {_UNSAFE}",
        )
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxMissingError(
            "bubblewrap is not installed (no bwrap on PATH), and the Python sandbox is built with it",
            fix=f"apt-get install bubblewrap, or {_UNSAFE}",
        )
    return path


def sandbox_command(
    bubblewrap: str, runtime: Runtime, isolation: Isolation, limits: Limits, *, result_pipe: int, info_file: int
) -> list[str]:
    """The command line of one worker.

    Without --die-with-parent, on purpose: bubblewrap ended by it while it is still at work leaves behind the first
    process of the sandbox, which then waits for ever to be told that it may go on.
    """
    command = [bubblewrap, *_NAMESPACES, "--hostname", "sandbox", "--new-session", "--clearenv"]
    command += ["--info-fd", str(info_file), "--cap-drop", "ALL"]
    if isolation is Isolation.OWN_USER:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    for folder in runtime.folders:
        # Made beforehand: bubblewrap would make them for its own user only.
        command += ["--perms", "0755", "--dir", folder]
    for inside, outside in runtime.shown.items():
        command += ["--ro-bind", str(outside), inside]
    for folder in runtime.hidden:
        command += ["--perms", "0555", "--tmpfs", folder]
    for device in DEVICES:
        # bubblewrap cannot show a device read-only. One that the code would own it could chmod for the whole machine.
        if isolation is Isolation.OWN_USER or Path(device).stat().st_uid != os.geteuid():
            command += ["--dev-bind", device, device]
    command += ["--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/"]
    for folder in runtime.hidden:
        command += ["--remount-ro", folder]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return [*command, "--", INTERPRETER, "-P", "-s", "-S", "-B", "-X", "utf8", runtime.worker, str(result_pipe)]
