"""How a worker is started: in the sandbox, or without one where the user insists."""

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
from mcprl.processes.guard import GUARD, kill_marked
from mcprl.servers.python.bubblewrap import Isolation, find_bubblewrap, fresh_user, likely_isolation, sandbox_command
from mcprl.servers.python.limits import Limits
from mcprl.servers.python.runtime import PACKAGES, find_runtime, package_folders
from mcprl.servers.python.seccomp import make_filter

__all__ = ["Kind", "Launch", "choose_launch", "framed"]

_logger = logging.getLogger(__name__)

_PROBE_S = 30.0


class Kind(StrEnum):
    """What a worker has imported before it is given a program. It changes how soon a program runs, not what it can."""

    PLAIN = "plain"
    PANDAS = "pandas"


_PRELOAD = {Kind.PLAIN: {}, Kind.PANDAS: {"np": "numpy", "pd": "pandas"}}


def framed(message: bytes) -> bytes:
    """A message to a worker, after its length in four bytes."""
    return len(message).to_bytes(4, "big") + message


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start workers. Without `bubblewrap` they are plain processes, held by limits alone.

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
        """Start a worker with these ends of its pipes. They stay open here.

        It carries the marks of `mcprl.processes`, which the code inside never sees: by them the guard finds it when we
        are gone. A worker that waits for a program ends by itself then.
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
        """The first message to a worker: what to confine itself to, and what to import."""
        limits = self.limits
        bounds = {
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_CORE": 0,
        }
        if self.is_sandboxed:  # a plain process shares the count with all others of its user
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
    """The sandbox, tried once; where it cannot be had, plain processes if the user allows those, else an error."""
    try:
        launch = Launch(limits=limits, bubblewrap=find_bubblewrap(), isolation=likely_isolation())
        find_runtime()
        _probe(launch)
    except SandboxMissingError as error:
        if not allow_unsafe:
            raise
        _logger.warning(
            "THE PYTHON SERVER RUNS WITHOUT A SANDBOX (%s). Code that a policy writes can read every file of this "
            "user, tasks and keys included, change them, use the network, start processes that stay behind, and "
            "signal others. Only processor time, memory, file sizes and output are bounded.",
            error.what,
        )
        return Launch(limits=limits, bubblewrap=None)
    return launch


def _probe(launch: Launch) -> None:
    """Start one worker and wait until it is ready. Raises SandboxMissingError with what it said where it is not."""
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
            # Its input then ends, and with it the worker.
            _, said = process.communicate(launch.setup(Kind.PLAIN), timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            kill_marked(f"{CHILD_MARK}={mark}")
            said = process.communicate()[1]
        is_ready = result.read() == framed(b"ready")
    if not is_ready:
        lines = said.decode(errors="replace").strip().splitlines()
        raise SandboxMissingError(
            f"the Python sandbox cannot be built here: {lines[-1] if lines else 'a worker did not become ready'}",
            fix="let bubblewrap make namespaces (kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined), or start the server with allow_unsafe for code that you trust",
        )


def _plain_command(result_pipe: int) -> Sequence[str]:
    worker = Path(__file__).with_name("worker.py")
    return [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(worker), str(result_pipe)]
