"""Runs programs in the sandbox, and says in words what came of them."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import re
import signal
from typing import Any, cast

from mcprl.servers.python.launch import Kind, Launch
from mcprl.servers.python.limits import Limits
from mcprl.servers.python.process import Ending
from mcprl.servers.python.programs import Failed, FailureKind, Outcome, Program, Ran, Step
from mcprl.servers.python.values import read_json
from mcprl.servers.python.workers import WorkerPool

__all__ = ["Sandbox", "limit_message", "outcome_of_report"]

_SIGNALLED = 128
_SOURCE_CHARS = 160
_USES_PANDAS = re.compile(r"\b(pandas|numpy|pd|np)\b")
_ONLY_THESE = "Only the standard library, numpy and pandas are installed."


class Sandbox:
    """Runs each program in a process of its own that is used once. An asynchronous context manager.

    `spares` workers of each kind are kept ready; by default as many as the machine has processors.
    """

    def __init__(self, launch: Launch, *, spares: int | None = None) -> None:
        processors = os.cpu_count() or 1
        count = max(2, processors) if spares is None else spares
        self._limits = launch.limits
        self.pool = WorkerPool(
            launch,
            spares=dict.fromkeys(Kind, count),
            at_once=max(4, 2 * processors),
            starts_at_once=2 * processors,  # a start also waits for the kernel: one for each would leave it idle
        )
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Sandbox:
        await self._stack.enter_async_context(self.pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, program: Program) -> Outcome:
        """Run a program. Raises SandboxLostError if the sandbox failed in a way that no program can bring about."""
        kind = Kind.PANDAS if any(_USES_PANDAS.search(step.code) for step in program.steps) else Kind.PLAIN
        message = marshal.dumps(
            {
                "steps": [{"name": step.name, "code": step.code} for step in program.steps],
                "names": dict(program.names),
            }
        )
        if len(message) > self._limits.program_bytes:
            size = self._limits.program_bytes // (1024 * 1024)
            return Failed(kind=FailureKind.MEMORY, message=f"The code and its data are larger than {size} MB.")
        async with self.pool.worker(kind) as worker:
            ending = await worker.run(message)
        return self._outcome(program, ending)

    def _outcome(self, program: Program, ending: Ending) -> Outcome:
        stdout = ending.stdout.decode(errors="replace")
        stderr = ending.stderr.decode(errors="replace")
        if ending.broken is not None:
            return Failed(kind=ending.broken, message=limit_message(ending.broken, self._limits), stdout=stdout)
        if ending.report is None:
            return _ended_early(ending.status, self._limits, stdout)
        try:
            report = read_json(ending.report)
        except ValueError:
            report = None
        outcome = outcome_of_report(report, program, self._limits, stdout=stdout, stderr=stderr)
        return outcome or Failed(
            kind=FailureKind.ENDED,
            message="The code wrote something else than a result to where results go.",
            stdout=stdout,
        )


def limit_message(kind: FailureKind, limits: Limits) -> str:
    """Which limit was broken, for the policy to read."""
    mib = 1024 * 1024
    return {
        FailureKind.CPU: f"The code took more than {limits.cpu_s} s of processor time and was ended.",
        FailureKind.DEADLINE: f"The code did not end within {limits.deadline_s:g} s and was ended.",
        FailureKind.MEMORY: f"The code needs more than {limits.memory_bytes // mib} MB of memory, which is the limit.",
        FailureKind.OUTPUT: f"The code printed more than {limits.output_bytes // mib} MB, which is the limit.",
        FailureKind.RESULT: f"The result is larger than {limits.result_bytes // mib} MB, which is the limit.",
        FailureKind.DISK: f"The code made more than {limits.disk_files} files, which is the limit.",
    }[kind]


def outcome_of_report(report: Any, program: Program, limits: Limits, *, stdout: str, stderr: str) -> Outcome | None:
    """Read a report, which the code may have forged: None where it has not the form of one."""
    if not isinstance(report, dict):
        return None
    fields = cast("dict[str, Any]", report)
    if fields.get("limit") == "result":
        return Failed(kind=FailureKind.RESULT, message=limit_message(FailureKind.RESULT, limits), stdout=stdout)
    if "error" in fields:
        return _raised(fields["error"], program, limits, stdout)
    if "value" not in fields:
        return Ran(value=None, shown=None, stdout=stdout, stderr=stderr)
    shown = fields.get("shown")
    written = json.dumps(fields["value"], ensure_ascii=False)
    value = json.loads(written, parse_constant=lambda _: None)  # no NaN, which is not JSON
    return Ran(value=value, shown=shown if isinstance(shown, str) else written, stdout=stdout, stderr=stderr)


def _raised(error: Any, program: Program, limits: Limits, stdout: str) -> Failed | None:
    if not isinstance(error, dict):
        return None
    fields = cast("dict[str, Any]", error)
    kind, message, step, line = (fields.get(name) for name in ("type", "message", "step", "line"))
    if not (isinstance(kind, str) and isinstance(message, str) and isinstance(line, int)):
        return None
    if kind == "MemoryError":
        return Failed(kind=FailureKind.MEMORY, message=limit_message(FailureKind.MEMORY, limits), stdout=stdout)
    sentence = f"{kind}: {message}" if message else kind
    for number, candidate in enumerate(program.steps, start=1):
        if candidate.name == step and line > 0 and not candidate.is_ours:
            where = f" of step {number} ({step})" if len(program.steps) > 1 else ""
            sentence += f"\nin line {line}{where}: {_line(candidate, line)}"
            break
    if kind == "ModuleNotFoundError":
        sentence += f"\n{_ONLY_THESE}"
    return Failed(kind=FailureKind.RAISED, message=sentence, stdout=stdout)


def _line(step: Step, number: int) -> str:
    lines = step.code.splitlines()
    return lines[number - 1].strip()[:_SOURCE_CHARS] if number <= len(lines) else ""


def _ended_early(status: int | None, limits: Limits, stdout: str) -> Failed:
    """No report: the code ended the interpreter, or was ended by a limit that the kernel keeps."""
    assert status is not None, "without a report or a broken limit, the worker has ended"
    number = -status if status < 0 else status - _SIGNALLED
    if number == signal.SIGXCPU:
        return Failed(kind=FailureKind.CPU, message=limit_message(FailureKind.CPU, limits), stdout=stdout)
    if number in set(signal.Signals):
        message = f"The interpreter was ended by {signal.Signals(number).name}."
        return Failed(kind=FailureKind.ENDED, message=message, stdout=stdout)
    return Failed(
        kind=FailureKind.ENDED, message=f"The code ended the interpreter with status {status}.", stdout=stdout
    )
