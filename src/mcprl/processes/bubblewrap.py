"""Shared code for running programs in bubblewrap: finding `bwrap`, its namespace options, and seccomp filters."""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mcprl.errors import SandboxMissingError

NAMESPACES = ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox")
NO_NETWORK = "--unshare-net"
ALLOW_NAMESPACES = (
    "allow bubblewrap to create namespaces (kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
)


def find_bubblewrap(sandbox: str, otherwise: str) -> str:
    """Return the path of `bwrap`. Raises SandboxMissingError, whose fix offers `otherwise` as an alternative."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxMissingError(
            f"bubblewrap is not installed (no bwrap on PATH), but {sandbox} needs it",
            fix=f"apt-get install bubblewrap, or {otherwise}",
        )
    return path


MACHINES: Final[tuple[str, ...]] = ("x86_64", "aarch64")
_AUDIT_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT: Final = 0x40000000


class Operation:
    """The instruction codes of classic BPF, from <linux/filter.h>."""

    LOAD, AND, RETURN = 0x20, 0x54, 0x06
    EQUAL, AT_LEAST, ANY_BIT = 0x15, 0x35, 0x45


_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4  # in `struct seccomp_data`

_KILL_PROCESS: Final = 0x80000000
ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
DENY: Final = ERRNO | errno.EPERM

# Name, number on x86_64, number on aarch64. Keyrings are shared by all processes of a user. The other calls had most of
# the security holes of the kernel, and programs can do without them.
_DENIED: Final = """
add_key 248 217, request_key 249 218, keyctl 250 219, perf_event_open 298 241, bpf 321 280, userfaultfd 323 282,
io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427
"""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a filter. `if_true` and `if_false` say how many instructions a jump skips in each case.

    Instruction(Operation.EQUAL, 39, 0, 1)     # if it is 39, continue; else skip the next instruction
    """

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


def numbers(table: str, machine: str) -> dict[str, int]:
    """Return system call numbers by name. In `table`, each name has a number or a dash for each of MACHINES."""
    column = 1 + MACHINES.index(machine)
    rows = (entry.split() for entry in table.replace("\n", " ").split(","))
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def filter_head(machine: str) -> list[Instruction]:
    """Return instructions that reject system calls of other architectures, then load the system call's number."""
    return [
        Instruction(Operation.LOAD, _ARCHITECTURE_OFFSET),
        Instruction(Operation.EQUAL, _AUDIT_ARCHITECTURE[machine], 1, 0),
        Instruction(Operation.RETURN, _KILL_PROCESS),
        Instruction(Operation.LOAD, _NUMBER_OFFSET),
        Instruction(Operation.AT_LEAST, _X32_BIT, 0, 1),
        Instruction(Operation.RETURN, DENY),
    ]


def assembled(program: Sequence[Instruction]) -> bytes:
    """Return the program as the array of `struct sock_filter` that the kernel expects."""
    return b"".join(struct.pack("=HBBI", i.code, i.if_true, i.if_false, i.value) for i in program)


def denying_filter(machine: str) -> bytes:
    """Return a filter for third-party programs. It denies a few system calls that no server needs."""
    program = filter_head(machine)
    for number in numbers(_DENIED, machine).values():
        program += [Instruction(Operation.EQUAL, number, 0, 1), Instruction(Operation.RETURN, DENY)]
    return assembled([*program, Instruction(Operation.RETURN, ALLOW)])
