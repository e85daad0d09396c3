"""The guard, a shell that kills our descendants after our process has ended, and the marks that identify them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time

OWNER_MARK = "MCPRL_OWNER"
"""Environment variable of every descendant. Its value identifies this mcprl process."""
CHILD_MARK = "MCPRL_CHILD"
"""Environment variable of every descendant. Its value identifies the child that the process descends from."""

_logger = logging.getLogger(__name__)

_GUARD_END_S = 5.0
_STRAYS_END_S = 5.0
_POLL_S = 0.01

# $0 is the pattern of our mark in the limits, $1 our mark in the environment. Lines "+ GROUP" and "- GROUP" add and
# remove groups; the input ends when we end. The number of rounds is limited because a process may be unkillable. A
# process between fork and exec has no mark, so the search must find nothing several times. A zombie keeps its limits
# until it is reaped.
_SCRIPT = """
trap '' HUP INT TERM
groups=
while read -r change group; do
    rest=
    for other in $groups; do [ "$other" = "$group" ] || rest="$rest $other"; done
    groups=$rest
    [ "$change" = - ] || groups="$groups $group"
done
for group in $groups; do kill -s KILL -- "-$group"; done
rounds=0
empty=0
while [ "$rounds" -lt 200 ] && [ "$empty" -lt 3 ]; do
    empty=$((empty + 1))
    for path in $(grep -lsaF -- "$1" /proc/[0-9]*/environ) $(grep -lsE -- "$0" /proc/[0-9]*/limits); do
        process=${path%/*}
        if grep -qs '^State:.Z' "$process/status"; then continue; fi
        kill -s KILL "${process#/proc/}" && empty=0
    done
    rounds=$((rounds + 1))
    sleep 0.02
done
"""


class Guard:
    """The shell that kills our descendants after our process ends. It is started before the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._our_pid = 0
        self._mark = ""
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def start(self) -> str:
        """Start the guard if it is not running. Return the mark of our process."""
        with self._lock:
            self._ensure()
            return self._mark

    def watch(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._tell(f"- {group}\n")

    def finish(self) -> None:
        """At the end of our process, let the guard kill everything that is left, and wait for the guard."""
        if self._process is not None and self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GUARD_END_S)

    def after_fork(self) -> None:
        """In a forked process, close our copy of the pipe, so that the pipe closes when the original process ends."""
        self._lock = threading.Lock()
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _tell(self, line: str) -> None:
        while not self._ensure():
            assert self._pipe is not None
            assert self._process is not None
            try:
                os.write(self._pipe, line.encode())
            except BrokenPipeError:
                self._process.wait()
            else:
                return

    def _ensure(self) -> bool:
        """Start the guard if it is not running, and send it all groups. Return whether it was started."""
        if self._our_pid != os.getpid():
            if self._process is not None:
                self._process.returncode = 0  # we are a fork, so the guard is not our child, and we cannot wait for it
            self._our_pid, self._mark, self._groups, self._process = os.getpid(), secrets.token_hex(16), set(), None
        if self._process is not None and self._process.poll() is None:
            return False
        if self._pipe is not None:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe()
        try:
            # The environment is empty, so that the guard does not inherit the mark of an mcprl process that started us.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, _in_limits(owner=self._mark), f"{OWNER_MARK}={self._mark}"],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(read_end)
        os.write(self._pipe, "".join(f"+ {group}\n" for group in self._groups).encode())
        return True


GUARD = Guard()
atexit.register(GUARD.finish)
os.register_at_fork(after_in_child=GUARD.after_fork)


def limit_of(owner: str, child: str) -> int:
    """Return a soft limit on real-time CPU microseconds that encodes both marks: the digit 4, then nine digits of each.

    Like the environment, limits are inherited by all descendants, but programs that clear the environment keep them.
    The limit is about 127,000 years, so it never takes effect.
    """
    return int(f"4{_digits(owner)}{_digits(child)}")


def _digits(mark: str) -> str:
    return f"{int(mark, 16) % 10**9:09d}"


def _in_limits(*, owner: str = "", child: str = "") -> str:
    """Return a pattern that matches the line with the marks in /proc/PID/limits."""
    nine = "[0-9]{9}"
    return f"^Max realtime timeout +4{_digits(owner) if owner else nine}{_digits(child) if child else nine} "


def _marked(mark: str) -> list[int]:
    """Return the ids of processes with a child's mark in their environment or resource limits; none without /proc."""
    in_limits = re.compile(_in_limits(child=mark).encode(), re.MULTILINE)
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else []):
        is_ours = f"{CHILD_MARK}={mark}".encode() in _read(f"/proc/{name}/environ")
        is_ours = is_ours or in_limits.search(_read(f"/proc/{name}/limits")) is not None
        # A zombie keeps its limits until it is reaped.
        if is_ours and not _read(f"/proc/{name}/stat").rpartition(b")")[2].startswith(b" Z"):
            found.append(int(name))
    return found


def _read(path: str) -> bytes:
    """Return the content of a process's file in /proc; empty if the process has ended or belongs to another user."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def kill_marked(mark: str) -> None:
    """Kill all processes with this child's mark. Repeat, because a process that is being forked may be missed."""
    deadline = time.monotonic() + _STRAYS_END_S
    while left := _marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            _logger.warning("processes %s did not end after SIGKILL", left)
            return
        time.sleep(_POLL_S)
