"""Programs, their outcomes, and the JSON that they or the policy wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mcprl_market.python.worker import MAX_DEPTH

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

# Measured without a loop over the values, because a report may have half a million, and other calls would wait.
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_ROUND = bytes.maketrans(b"[]{}", b"()()")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Lone surrogates become "?": JSON's escapes can express them, UTF-8 cannot.

    Raises ValueError if the text is not JSON, or is nested more than MAX_DEPTH levels deep.

    >>> read_json('{"close": [1, 2.5], "name": "\\\\ud800"}')
    {'close': [1, 2.5], 'name': '?'}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _sendable(value)


def json_value(data: Any) -> Any:
    """Return the value of an argument. Policies send JSON either as a value or as a string.

    Raises ValueError if a value is nested too deeply. A string that is nested too deeply stays a string.

    >>> json_value('{"pe": 55.79}'), json_value([1, 2]), json_value("plain text")
    ({'pe': 55.79}, [1, 2], 'plain text')
    """
    if not isinstance(data, str):
        return _sendable(data)
    try:
        return read_json(data)
    except ValueError:
        return data


def _sendable(value: Any) -> Any:
    try:
        written = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    brackets = _TEXTS.sub(b"", written).translate(_ROUND, _OTHERS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"()", b"")  # removes the innermost pairs that are left
    if brackets:
        raise ValueError(_TOO_DEEP)
    return json.loads(written)
