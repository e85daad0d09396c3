"""What one run of code may use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one run. What goes beyond one ends, and the policy reads which.

    Processor time is what a program is judged by, because it does not depend on what else the machine does. The
    deadline, by the clock, is for programs that wait.

    Limits(cpu_s=10, deadline_s=20.0)
    """

    cpu_s: int = 10
    deadline_s: float = 20.0
    memory_bytes: int = 1024 * _MIB
    threads: int = 16
    open_files: int = 64
    disk_bytes: int = 64 * _MIB
    disk_files: int = 4096
    output_bytes: int = _MIB
    result_bytes: int = _MIB
    program_bytes: int = 16 * _MIB
