"""Programs and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one program. A program that exceeds a limit is killed, and the policy is shown which limit it was.

    CPU time is the main limit, because it does not depend on the load of the machine. The deadline is wall-clock
    time, for programs that wait.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A named piece of code. Errors are reported with the line, and with the name if there are several steps.

    With `is_ours`, the code belongs to the server, and its lines are not reported.

    Step(name="double", code="data * 2")
    """

    name: str
    code: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Code and the variables it sees. Each step gets the value of the previous step as `data`.

    Program(steps=(Step(name="code", code="sum(data)"),), names={"data": [1, 2, 3], "context": {}})
    """

    steps: tuple[Step, ...]
    names: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The program ended normally. `value` is JSON; `shown` is its text, or None if there is no value.

    Ran(value=6, shown="6", stdout="", stderr="")
    """

    value: Any
    shown: str | None
    stdout: str
    stderr: str


class FailureKind(StrEnum):
    """Why a program failed. Each kind is the program's fault."""

    RAISED = "raised"
    ENDED = "ended"
    CPU = "cpu"
    DEADLINE = "deadline"
    MEMORY = "memory"
    OUTPUT = "output"
    RESULT = "result"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The program raised an exception, exceeded a limit or ended its interpreter. The policy reads `message`.

    Failed(kind=FailureKind.RAISED, message="ZeroDivisionError: division by zero, in line 2: x / 0", stdout="")
    """

    kind: FailureKind
    message: str
    stdout: str = ""


Outcome = Ran | Failed
