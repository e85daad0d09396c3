"""The seccomp filter: its numbers are the kernel's, and it denies every unknown call."""
# R14

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.processes.bubblewrap import MACHINES
from mcprl_market.python.seccomp import SYSTEM_CALLS, make_filter

ALLOW, DENY, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def judge(machine: str, number: int, arguments: tuple[int, ...] = (), architecture: int | None = None) -> int:
    """What the kernel would do: an interpreter for the few instructions that the filter consists of."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("=IIQ6Q", number, ARCHITECTURES[machine] if architecture is None else architecture, 0, *padded)
    program = make_filter(machine)
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}[code]
            at += if_true if holds else if_false


def call(machine: str, name: str, *arguments: int) -> int:
    return judge(machine, SYSTEM_CALLS[machine][name], arguments)


@pytest.mark.process
@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_libseccomp(machine):
    path = ctypes.util.find_library("seccomp")
    if path is None:
        pytest.skip("libseccomp is missing: apt-get install libseccomp2")
    library = ctypes.CDLL(path)
    known = {
        name: library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(ARCHITECTURES[machine]), name.encode())
        for name in SYSTEM_CALLS[machine]
    }
    assert known == SYSTEM_CALLS[machine]


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 2**32 - 1), arguments=st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_an_unknown_call_is_denied_whatever_its_arguments(machine, number, arguments):
    if number not in SYSTEM_CALLS[machine].values():
        assert judge(machine, number, arguments) == DENY


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_a_call_of_another_architecture_ends_the_process(machine, number, other):
    if other != ARCHITECTURES[machine]:
        assert judge(machine, number, (), other) == KILL


def test_calls_in_the_x32_form_are_denied():
    assert {judge("x86_64", number | 0x40000000) for number in SYSTEM_CALLS["x86_64"].values()} == {DENY}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_could_leave_the_sandbox_is_on_no_list(machine):
    dangerous = {
        "execve",
        "execveat",
        "fork",
        "vfork",
        "socket",
        "connect",
        "bind",
        "ptrace",
        "mount",
        "unshare",
        "setns",
    }
    dangerous |= {"kill", "tkill", "bpf", "io_uring_setup", "keyctl", "memfd_create", "shmget", "setuid", "setresuid"}
    dangerous |= {"process_vm_readv", "perf_event_open", "userfaultfd", "open_by_handle_at", "seccomp", "pidfd_getfd"}
    dangerous |= {"flock", "inotify_init1", "timer_create", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"}
    assert dangerous & set(SYSTEM_CALLS[machine]) == set()


@pytest.mark.parametrize("machine", MACHINES)
@given(flags=st.integers(0, 2**32 - 1))
def test_only_threads_can_be_started(machine, flags):
    is_thread = bool(flags & 0x10000)
    leaves = flags & (0x80 | 0x2000 | 0x20000 | 0x7E000000)
    assert call(machine, "clone", flags) == (ALLOW if is_thread and not leaves else DENY)


@pytest.mark.parametrize("machine", MACHINES)
@given(status=st.integers(0, 2**32 - 1))
def test_no_status_looks_as_if_the_machine_had_killed_the_code(machine, status):
    expected = DENY if status & 0xFF == 137 else ALLOW
    assert {call(machine, name, status) for name in ("exit", "exit_group")} == {expected}


@pytest.mark.parametrize("machine", MACHINES)
@given(pointer=st.integers(1, 2**64 - 1))
def test_limits_can_be_read_and_not_set(machine, pointer):
    assert call(machine, "prlimit64", 0, 7, 0, 1234) == ALLOW
    assert call(machine, "prlimit64", 0, 7, pointer, 0) == DENY
    assert call(machine, "sendto", 5, 1234, 1, 0, 0, 0) == ALLOW
    assert call(machine, "sendto", 5, 1234, 1, 0, pointer, 16) == DENY


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_terminals_and_pairs_are_judged_by_their_arguments(machine):
    assert {call(machine, "tgkill", 2, 2, number) for number in (6, 10, 15)} == {ALLOW}
    assert call(machine, "tgkill", 2, 2, 9) == DENY
    assert call(machine, "ioctl", 0, 0x5401) == ALLOW
    assert {call(machine, "ioctl", 0, request) for request in (0x5412, 0x541C, 0x5402)} == {DENY}
    assert [call(machine, "socketpair", family) for family in (1, 2, 16)] == [ALLOW, DENY, DENY]
    assert [call(machine, "prctl", option) for option in (15, 22, 38, 8)] == [ALLOW, DENY, DENY, DENY]


@pytest.mark.parametrize("machine", MACHINES)
@given(command=st.integers(0, 2**32 - 1), flags=st.integers(0, 2**32 - 1))
def test_fcntl_copies_locks_and_sets_flags_but_sends_no_signal(machine, command, flags):
    o_async = 0x2000
    allowed = command in (0, 1, 2, 3, 5, 6, 7, 1030)
    assert call(machine, "fcntl", 3, command, flags) == (ALLOW if allowed else DENY) or command == 4
    assert call(machine, "fcntl", 3, 4, flags & ~o_async) == ALLOW
    assert call(machine, "fcntl", 3, 4, flags | o_async) == DENY
    signalling = (8, 10, 15, 1024, 1026, 1031)  # F_SETOWN F_SETSIG F_SETOWN_EX F_SETLEASE F_NOTIFY F_SETPIPE_SZ
    assert {call(machine, "fcntl", 3, number, flags) for number in signalling} == {DENY}


@pytest.mark.parametrize("machine", MACHINES)
def test_newer_calls_are_said_to_be_absent_so_that_callers_use_the_older(machine):
    assert call(machine, "clone3") == 0x00050000 | errno.ENOSYS
    assert call(machine, "listxattr") == 0x00050000 | errno.ENOTSUP


@pytest.mark.parametrize("machine", MACHINES)
def test_setting_file_times_has_no_effect_and_is_not_an_error(machine):
    assert call(machine, "utimensat") == 0x00050000


def test_there_is_no_filter_for_an_unknown_machine():
    with pytest.raises(KeyError, match="riscv64"):
        make_filter("riscv64")
