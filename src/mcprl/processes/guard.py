"""The guard: a shell that outlives our process to kill our descendants, and the marks by which it finds them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time

__all__ = ["CHILD_MARK", "GUARD", "OWNER_MARK", "kill_marked"]

OWNER_MARK = "MCPRL_OWNER"
"""Environment variable of every descendant. It identifies the mcprl process."""
CHILD_MARK = "MCPRL_CHILD"
"""Environment variable of every descendant. It identifies the child that the process is or descends from."""

_logger = logging.getLogger(__name__)

_GUARD_END_S = 5.0
_STRAYS_END_S = 5.0
_POLL_S = 0.01

# $0 is our mark. Lines "+ GROUP" and "- GROUP" add and remove groups; the input ends when our process ends. The number
# of rounds is limited because a process may be unkillable. A process between fork and exec has no mark, so the search
# must find nothing several times.
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
    left=$(grep -lsaF -- "$0" /proc/[0-9]*/environ)
    if [ -n "$left" ]; then empty=0; else empty=$((empty + 1)); fi
    for path in $left; do pid=${path#/proc/}; kill -s KILL "${pid%/environ}"; done
    rounds=$((rounds + 1))
    sleep 0.02
done
"""


class Guard:
    """The shell that kills our descendants after our process ends. It starts with the first child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._our_pid = 0
        self._mark = ""
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def start(self) -> str:
        """Start the guard unless it is running. Return our mark."""
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
        """In a fork, close the pipe: it must close when the original process ends, not when the fork ends."""
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
        """Start the guard if it is not running, and tell it all groups. Return whether it was started."""
        if self._our_pid != os.getpid():
            if self._process is not None:
                self._process.returncode = 0  # we are a fork, so the guard is not our child and cannot be waited for
            self._our_pid, self._mark, self._groups, self._process = os.getpid(), secrets.token_hex(16), set(), None
        if self._process is not None and self._process.poll() is None:
            return False
        if self._pipe is not None:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe()
        try:
            # With an empty environment, so that the guard does not have the mark of another mcprl that started us.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, f"{OWNER_MARK}={self._mark}"],
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


def _marked(mark: bytes) -> list[int]:
    """Return the ids of processes with this mark in their environment; none if there is no /proc."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else []):
        # The process may have ended. If it belongs to another user, it is not ours.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as environment:
            if mark in environment.read():
                found.append(int(name))
    return found


def kill_marked(mark: str) -> None:
    """Kill all processes with this mark, in rounds. A process that is just being forked is found in the next round."""
    deadline = time.monotonic() + _STRAYS_END_S
    while left := _marked(mark.encode()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            _logger.warning("processes %s did not end after SIGKILL", left)
            return
        time.sleep(_POLL_S)
