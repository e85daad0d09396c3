"""The guard: a shell that outlives us just long enough to end our descendants, and the marks by which it finds them."""

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
"""Variable in the environment of every descendant: which mcprl process it belongs to."""
CHILD_MARK = "MCPRL_CHILD"
"""Variable in the environment of every descendant: which child of ours it is, or descends from."""

_logger = logging.getLogger(__name__)

_GUARD_END_S = 5.0
_STRAYS_END_S = 5.0
_POLL_S = 0.01

# $0 is our mark. Lines "+ GROUP" and "- GROUP" tell which groups there are; the end of the input is our end. A process
# that cannot be killed must not keep the guard alive, hence the limited number of rounds. One that has been forked and
# not yet executed anything bears no mark, hence several looks that find nothing.
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
    """The shell that ends our descendants when we are gone. Started with the first child, kept until we end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._our_pid = 0
        self._mark = ""
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    def start(self) -> str:
        """Make sure that the guard runs before there is anything to guard. Returns the mark it looks for."""
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
        """At the end of our process: let the guard end what is left, and wait for it."""
        if self._process is not None and self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GUARD_END_S)

    def after_fork(self) -> None:
        """In a fork of our process: the pipe must close when we end, not when the fork does."""
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
        """Start the guard where there is none, or none any more; then it knows all groups. Says whether it did."""
        if self._our_pid != os.getpid():
            if self._process is not None:
                self._process.returncode = 0  # we are a fork, it is no child of ours: nothing to wait for
            self._our_pid, self._mark, self._groups, self._process = os.getpid(), secrets.token_hex(16), set(), None
        if self._process is not None and self._process.poll() is None:
            return False
        if self._pipe is not None:
            os.close(self._pipe)
        read_end, self._pipe = os.pipe()
        try:
            # With an empty environment: a guard must not carry the mark of an mcprl that started ours.
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
    """Processes with this mark in their environment; none where there is no /proc."""
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc") if sys.platform == "linux" else []):
        # It may have ended meanwhile, or belong to someone else, and then it is not ours.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as environment:
            if mark in environment.read():
                found.append(int(name))
    return found


def kill_marked(mark: str) -> None:
    """Kill until none is left: one that is just being forked shows up in the next round."""
    deadline = time.monotonic() + _STRAYS_END_S
    while left := _marked(mark.encode()):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            _logger.warning("processes %s do not end though they were killed", left)
            return
        time.sleep(_POLL_S)
