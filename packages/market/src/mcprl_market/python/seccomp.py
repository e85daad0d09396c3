"""The seccomp filter of the sandbox: the system calls that code may make. All others are denied.

The code runs in one process. It can start threads but no processes or programs, cannot open sockets, and cannot trace,
signal or inspect other processes. Denied calls fail with EPERM, so an honest program gets a `PermissionError`. The
worker installs the filter as its last step before it accepts a program, so even `execve` can be denied.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Mapping, Sequence
from typing import Final

from mcprl.processes.bubblewrap import (
    ALLOW,
    DENY,
    ERRNO,
    MACHINES,
    Instruction,
    Operation,
    assembled,
    filter_head,
    numbers,
)

KILLED_STATUS: Final = 137
"""bubblewrap's exit status if SIGKILL ended the code. It comes from the out-of-memory killer, or from the kernel if the
code ignores SIGXCPU. The code itself can neither send that signal nor exit with this status."""

# Name, number on x86_64, number on aarch64. A dash: that machine has no such call.
_ALLOWED: Final = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, recvfrom 45 207, shutdown 48 210,
getsockname 51 204, getsockopt 55 209, wait4 61 260, uname 63 160, fsync 74 82, fdatasync 75 83,
truncate 76 45, ftruncate 77 46, getdents 78 -, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -,
mkdir 83 -, rmdir 84 -, creat 85 -, link 86 -, unlink 87 -, symlink 88 -, readlink 89 -, chmod 90 -, fchmod 91 52,
umask 95 166, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174,
getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173, getpgrp 111 -, getgroups 115 158, getresuid 118 148,
getresgid 120 150, getpgid 121 155, getsid 124 156, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, statfs 137 43, fstatfs 138 44, getpriority 140 141, gettid 186 178,
time 201 -, futex 202 98, sched_getaffinity 204 123, epoll_create 213 -, getdents64 217 61, set_tid_address 218 96,
restart_syscall 219 128, fadvise64 221 223, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
epoll_wait 232 -, epoll_ctl 233 21, waitid 247 95, openat 257 56, mkdirat 258 34, newfstatat 262 79, unlinkat 263 35,
renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78, fchmodat 268 53, faccessat 269 48, pselect6 270 72,
ppoll 271 73, set_robust_list 273 99, epoll_pwait 281 22, eventfd 284 -, fallocate 285 47,
eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70, getcpu 309 168,
renameat2 316 276, getrandom 318 278, statx 332 291, rseq 334 293, close_range 436 436, faccessat2 439 439
"""

# These calls report that they do not exist. Callers then use an older call, or continue without it.
_ABSENT: Final = "clone3 435 435, openat2 437 437"
_UNSUPPORTED: Final = "listxattr 194 11, llistxattr 195 12, flistxattr 196 13"
# This call reports success but does nothing, for `shutil.copy2` and others. All programs share /dev/null, and could
# leave each other messages in its timestamps.
_IGNORED: Final = "utimensat 280 88"

# Allowed only with some arguments; see `_conditional`.
_CHECKED: Final = """
ioctl 16 29, sendto 44 206, socketpair 53 199, clone 56 220, exit 60 93, fcntl 72 25, prctl 157 167, exit_group 231 94,
tgkill 234 131, prlimit64 302 261
"""

SYSTEM_CALLS: Final[Mapping[str, Mapping[str, int]]] = {
    machine: {
        name: number
        for table in (_ALLOWED, _ABSENT, _UNSUPPORTED, _IGNORED, _CHECKED)
        for name, number in numbers(table, machine).items()
    }
    for machine in MACHINES
}
"""Machine → name → number of each system call that the filter knows."""

_ARGUMENTS_OFFSET: Final = 16  # in `struct seccomp_data`

_CLONE_THREAD: Final = 0x00010000
# CLONE_NEWTIME, _PTRACE, _NEWNS, and cgroup, uts, ipc, user, pid, net.
_CLONE_FORBIDDEN: Final = 0x00000080 | 0x00002000 | 0x00020000 | 0x7E000000
# TCGETS TIOCGWINSZ FIONREAD FIONBIO FI[ON]CLEX
_IOCTL_REQUESTS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD F_GETFD F_SETFD F_GETFL F_GETLK F_SETLK F_SETLKW F_DUPFD_CLOEXEC. The others can send arbitrary signals
# (F_SETSIG, F_NOTIFY), delay other openers of a file (F_SETLEASE), or use memory that the kernel counts per user.
_FCNTL_COMMANDS: Final = (0, 1, 2, 3, 5, 6, 7, 1030)
_F_SETFL: Final = 4
_O_ASYNC: Final = 0x2000
_PRCTL_NAMES: Final = (15, 16)  # set and get the name of a thread
_AF_UNIX: Final = 1
_SIGKILL: Final = 9


@functools.cache
def make_filter(machine: str) -> bytes:
    """Return the filter for one of `MACHINES`, as the array of `struct sock_filter` that the kernel takes."""
    program = filter_head(machine)
    absent, unsupported = ERRNO | errno.ENOSYS, ERRNO | errno.ENOTSUP
    verdicts = ((_ALLOWED, ALLOW), (_ABSENT, absent), (_UNSUPPORTED, unsupported), (_IGNORED, ERRNO))
    for table, verdict in verdicts:
        for number in numbers(table, machine).values():
            program += [Instruction(Operation.EQUAL, number, 0, 1), Instruction(Operation.RETURN, verdict)]
    for name, number in numbers(_CHECKED, machine).items():
        checks = _conditional(name)
        program += [Instruction(Operation.EQUAL, number, 0, len(checks)), *checks]
    program.append(Instruction(Operation.RETURN, DENY))
    return assembled(program)


def _conditional(name: str) -> list[Instruction]:
    """Return the instructions that check the arguments of a call. Every path ends in a verdict."""
    allow, deny = Instruction(Operation.RETURN, ALLOW), Instruction(Operation.RETURN, DENY)
    if name == "clone":  # a thread of this process, in this process's namespaces
        in_namespace = Instruction(Operation.ANY_BIT, _CLONE_FORBIDDEN, 2, 0)
        return [_argument(0), in_namespace, Instruction(Operation.ANY_BIT, _CLONE_THREAD, 0, 1), allow, deny]
    if name in ("exit", "exit_group"):
        is_killed = Instruction(Operation.EQUAL, KILLED_STATUS, 1, 0)
        return [_argument(0), Instruction(Operation.AND, 0xFF), is_killed, allow, deny]
    if name == "tgkill":
        return [_argument(2), Instruction(Operation.EQUAL, _SIGKILL, 1, 0), allow, deny]
    if name == "fcntl":
        sets_flags = Instruction(Operation.EQUAL, _F_SETFL, 0, 3)
        sets_async = Instruction(Operation.ANY_BIT, _O_ASYNC, 1, 0)
        return [_argument(1), *_one_of(_FCNTL_COMMANDS), sets_flags, _argument(2), sets_async, allow, deny]
    if name == "prlimit64":  # only reading limits, not setting them
        return [*_null_pointer(2), deny]
    if name == "sendto":  # only to the other end of a socket pair, not to an address
        return [*_null_pointer(4), deny]
    index, values = {"ioctl": (1, _IOCTL_REQUESTS), "prctl": (0, _PRCTL_NAMES), "socketpair": (0, (_AF_UNIX,))}[name]
    return [_argument(index), *_one_of(values), deny]


def _argument(index: int, *, high: bool = False) -> Instruction:
    return Instruction(Operation.LOAD, _ARGUMENTS_OFFSET + 8 * index + (4 if high else 0))


def _one_of(values: Sequence[int]) -> list[Instruction]:
    allow = Instruction(Operation.RETURN, ALLOW)
    return [step for value in values for step in (Instruction(Operation.EQUAL, value, 0, 1), allow)]


def _null_pointer(index: int) -> list[Instruction]:
    low, high = Instruction(Operation.EQUAL, 0, 0, 3), Instruction(Operation.EQUAL, 0, 0, 1)
    return [_argument(index), low, _argument(index, high=True), high, Instruction(Operation.RETURN, ALLOW)]
