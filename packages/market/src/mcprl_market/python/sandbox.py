"""Runs programs in the sandbox, and describes their outcomes to the policy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import marshal
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, cast

from mcprl.errors import SandboxLostError
from mcprl_market.python.launch import Kind, Launch
from mcprl_market.python.process import Ending, WorkerProcess
from mcprl_market.python.programs import Failed, FailureKind, Limits, Outcome, Program, Ran, Step, read_json

_logger = logging.getLogger(__name__)

_START_S = 20.0
_TRIES = 3


class WorkerPool:
    """Keeps `spares` workers of each kind ready. When one is taken, starts the next.

    At most `at_once` programs run, and at most `starts_at_once` workers start, at the same time. An asynchronous
    context manager; leaving it ends every worker.
    """

    def __init__(self, launch: Launch, *, spares: Mapping[Kind, int], at_once: int, starts_at_once: int) -> None:
        self._launch = launch
        self._spares = spares
        self._ready: dict[Kind, deque[WorkerProcess]] = {kind: deque() for kind in spares}
        self._waiting: dict[Kind, deque[asyncio.Future[WorkerProcess]]] = {kind: deque() for kind in spares}
        self._starting = dict.fromkeys(spares, 0)
        self._failures = dict.fromkeys(spares, 0)
        self._slots = asyncio.Semaphore(at_once)
        self._starts = asyncio.Semaphore(starts_at_once)
        self._beginning: set[WorkerProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __aenter__(self) -> WorkerPool:
        for kind in self._spares:
            self._refill(kind)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for worker in self._beginning:
            worker.kill()
        for ready in self._ready.values():
            while ready:
                self._end(ready.popleft())
        while self._tasks:
            await asyncio.wait(self._tasks)

    @contextlib.asynccontextmanager
    async def worker(self, kind: Kind) -> AsyncGenerator[WorkerProcess]:
        """Yield a ready worker for one program. On exit, end it with everything in its sandbox."""
        async with self._slots:
            worker = await self._take(kind)
            try:
                yield worker
            finally:
                self._end(worker)

    async def full(self) -> None:
        """Wait until every spare is ready. For benchmarks and tests."""
        while any(len(self._ready[kind]) < count for kind, count in self._spares.items()):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _take(self, kind: Kind) -> WorkerProcess:
        ready = self._ready[kind]
        while ready:
            worker = ready.popleft()
            if worker.is_alive():
                self._refill(kind)
                return worker
            self._end(worker)
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append(turn)
        self._failures[kind] = 0
        self._refill(kind)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._end(turn.result())
            raise

    def _refill(self, kind: Kind) -> None:
        waiting = sum(not turn.done() for turn in self._waiting[kind])
        missing = self._spares[kind] + waiting - len(self._ready[kind]) - self._starting[kind]
        if self._is_closing or self._failures[kind] >= _TRIES:
            return
        for _ in range(missing):
            self._starting[kind] += 1
            self._spawn(self._start(kind))

    async def _start(self, kind: Kind) -> None:
        try:
            async with self._starts:
                if self._is_closing:
                    return
                worker = WorkerProcess(self._launch, kind)
                self._beginning.add(worker)
                try:
                    await worker.ready(_START_S)
                except SandboxLostError:
                    self._end(worker)
                    raise
                finally:
                    self._beginning.discard(worker)
        except SandboxLostError as error:
            self._note_failure(kind, error)
        else:
            self._failures[kind] = 0
            self._hand_over(worker)
        finally:
            self._starting[kind] -= 1
        self._refill(kind)

    def _hand_over(self, worker: WorkerProcess) -> None:
        waiting = self._waiting[worker.kind]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        ready = self._ready[worker.kind]
        if self._is_closing or len(ready) >= self._spares[worker.kind]:  # the task that wanted it has given up
            self._end(worker)
        else:
            ready.append(worker)

    def _note_failure(self, kind: Kind, error: SandboxLostError) -> None:
        """After several failures in a row, fail all waiting requests. The next request tries again."""
        self._failures[kind] += 1
        if not self._is_closing:
            _logger.warning("%s", error)
        if self._failures[kind] >= _TRIES:
            waiting = self._waiting[kind]
            while waiting:
                turn = waiting.popleft()
                if not turn.done():
                    turn.set_exception(error)

    def _end(self, worker: WorkerProcess) -> None:
        worker.kill()
        self._spawn(worker.gone())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_SIGNALLED = 128
_SOURCE_CHARS = 160
_USES_PANDAS = re.compile(r"\b(pandas|numpy|pd|np)\b")
_ONLY_THESE = "Only the standard library, numpy and pandas are installed."


class Sandbox:
    """Runs each program in a new process. An asynchronous context manager.

    `spares` workers of each kind are kept ready. The default is the number of processors.
    """

    def __init__(self, launch: Launch, *, spares: int | None = None) -> None:
        processors = os.cpu_count() or 1
        count = max(2, processors) if spares is None else spares
        self._limits = launch.limits
        self.pool = WorkerPool(
            launch,
            spares=dict.fromkeys(Kind, count),
            at_once=max(4, 2 * processors),
            starts_at_once=2 * processors,  # more than the processors, because a start also waits for the kernel
        )

    async def __aenter__(self) -> Sandbox:
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.__aexit__()

    async def run(self, program: Program) -> Outcome:
        """Run a program. Raises SandboxLostError if the sandbox fails in a way that no program can cause."""
        kind = Kind.PANDAS if any(_USES_PANDAS.search(step.code) for step in program.steps) else Kind.PLAIN
        message = marshal.dumps(
            {"steps": [{"name": step.name, "code": step.code} for step in program.steps], "names": dict(program.names)}
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
            return Failed(kind=ending.broken, message=_limit_message(ending.broken, self._limits), stdout=stdout)
        if ending.report is None:
            return _ended_early(ending.status, self._limits, stdout)
        try:
            report = read_json(ending.report)
        except ValueError:
            report = None
        outcome = _outcome_of_report(report, program, self._limits, stdout=stdout, stderr=stderr)
        message = "The code wrote invalid data to the pipe for its result."
        return outcome or Failed(kind=FailureKind.ENDED, message=message, stdout=stdout)


def _limit_message(kind: FailureKind, limits: Limits) -> str:
    """Return a message for the policy that names the exceeded limit."""
    mib = 1024 * 1024
    return {
        FailureKind.CPU: f"The code took more than {limits.cpu_s} s of CPU time and was killed.",
        FailureKind.DEADLINE: f"The code did not finish within {limits.deadline_s:g} s and was killed.",
        FailureKind.MEMORY: f"The code exceeded the memory limit of {limits.memory_bytes // mib} MB.",
        FailureKind.OUTPUT: f"The code exceeded the output limit of {limits.output_bytes // mib} MB.",
        FailureKind.RESULT: f"The result exceeds the limit of {limits.result_bytes // mib} MB.",
        FailureKind.DISK: f"The code exceeded the limit of {limits.disk_files} files.",
    }[kind]


def _outcome_of_report(report: Any, program: Program, limits: Limits, *, stdout: str, stderr: str) -> Outcome | None:
    """Parse a report, which the code may have forged. Return None if it is malformed."""
    if not isinstance(report, dict):
        return None
    fields = cast("dict[str, Any]", report)
    if fields.get("limit") == "result":
        return Failed(kind=FailureKind.RESULT, message=_limit_message(FailureKind.RESULT, limits), stdout=stdout)
    if "error" in fields:
        return _raised(fields["error"], program, limits, stdout)
    if "value" not in fields:
        return Ran(value=None, shown=None, stdout=stdout, stderr=stderr)
    shown = fields.get("shown")
    written = json.dumps(fields["value"], ensure_ascii=False)
    value = json.loads(written, parse_constant=lambda _: None)  # drops NaN, which is not JSON
    return Ran(value=value, shown=shown if isinstance(shown, str) else written, stdout=stdout, stderr=stderr)


def _raised(error: Any, program: Program, limits: Limits, stdout: str) -> Failed | None:
    if not isinstance(error, dict):
        return None
    fields = cast("dict[str, Any]", error)
    kind, message, step, line = (fields.get(name) for name in ("type", "message", "step", "line"))
    if not (isinstance(kind, str) and isinstance(message, str) and isinstance(line, int)):
        return None
    if kind == "MemoryError":
        return Failed(kind=FailureKind.MEMORY, message=_limit_message(FailureKind.MEMORY, limits), stdout=stdout)
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
    """Describe an end without a report: the code ended the interpreter, or a limit of the kernel did."""
    assert status is not None, "the worker ended without a report and without exceeding a limit"
    number = -status if status < 0 else status - _SIGNALLED
    if number == signal.SIGXCPU:
        return Failed(kind=FailureKind.CPU, message=_limit_message(FailureKind.CPU, limits), stdout=stdout)
    if number in set(signal.Signals):
        message = f"The interpreter was killed by {signal.Signals(number).name}."
        return Failed(kind=FailureKind.ENDED, message=message, stdout=stdout)
    message = f"The code exited the interpreter with status {status}."
    return Failed(kind=FailureKind.ENDED, message=message, stdout=stdout)
