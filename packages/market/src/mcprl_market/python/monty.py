"""The engine `monty`: an interpreter for a subset of Python that starts in less than a millisecond.

It needs no Linux and no bubblewrap. It has neither numpy nor pandas, and some results differ from Python's in the last
digit: `round(2.675, 2)` is 2.68.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, cast

from mcprl.errors import MissingExtraError
from mcprl_market.python.programs import Failed, FailureKind, Limits, Outcome, Program, Step
from mcprl_market.python.sandbox import limit_message, outcome_of_report
from mcprl_market.python.values import read_json
from mcprl_market.python.worker import report_of_value

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, MontyError

__all__ = ["MontyEngine"]

_GRACE_S = 1.0
_UNSUPPORTED = ("NotImplementedError", "ModuleNotFoundError", "ImportError")
_NAMES_RESULT = re.compile(r"\bresult\b")


class _Printed:
    """The output of a program, up to a limit."""

    def __init__(self, bound: int) -> None:
        self._parts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._room = bound

    @property
    def is_over(self) -> bool:
        return self._room < 0

    def add(self, stream: str, text: str) -> None:
        self._room -= len(text)
        if self.is_over:
            raise OverflowError("too much output")
        self._parts[stream].append(text)

    def text(self, stream: str) -> str:
        return "".join(self._parts[stream])


class MontyEngine:
    """Runs programs in Monty, each step in a new session. An asynchronous context manager.

    `time_s` limits the time of one step. The default is the processor time that the sandbox allows.
    """

    def __init__(self, limits: Limits, *, time_s: float | None = None) -> None:
        self._limits = limits
        self._time_s = limits.cpu_s if time_s is None else time_s
        self._pool: AsyncMonty | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> MontyEngine:
        try:
            from pydantic_monty import AsyncMonty
        except ImportError as error:
            raise MissingExtraError(
                "the engine monty needs pydantic-monty, which is not installed", fix="pip install 'mcprl[market]'"
            ) from error
        pool = AsyncMonty(request_timeout=self._limits.deadline_s + _GRACE_S)
        self._pool = await self._stack.enter_async_context(pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, program: Program) -> Outcome:
        from pydantic_monty import MontyError

        printed = _Printed(self._limits.output_bytes)
        names, value = dict(program.names), None
        for number, step in enumerate(program.steps, start=1):
            try:
                value = await self._value_of(step, names, printed)
            except MontyError as error:
                return self._failure(error, number, program, printed)
            names["data"] = names.get("data") if value is None else value
        try:
            report = read_json(report_of_value(value))
        except (ValueError, RecursionError) as error:
            return _raised(f"{type(error).__name__}: {error}", printed)
        stdout, stderr = printed.text("stdout"), printed.text("stderr")
        outcome = outcome_of_report(report, program, self._limits, stdout=stdout, stderr=stderr)
        assert outcome is not None, "our own report has the form of one"
        return outcome

    async def _value_of(self, step: Step, names: dict[str, Any], printed: _Printed) -> Any:
        from pydantic_monty import MontyRuntimeError

        assert self._pool is not None, "enter the engine before running programs"
        limits = {
            "max_feed_duration_secs": self._time_s,
            "max_memory": self._limits.memory_bytes,
            "max_total_sleep_secs": self._limits.deadline_s,
        }
        async with self._pool.checkout(limits=cast("Any", limits)) as session:
            value = await session.feed_run(step.code, inputs=names, print_callback=printed.add)
            if value is None and _NAMES_RESULT.search(step.code):
                with contextlib.suppress(MontyRuntimeError):  # the name is not a variable
                    value = await session.feed_run("result", print_callback=printed.add)
            return value

    def _failure(self, error: MontyError, number: int, program: Program, printed: _Printed) -> Failed:
        from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

        if printed.is_over:
            return self._broken(FailureKind.OUTPUT, printed)
        if not isinstance(error, MontyRuntimeError | MontySyntaxError):
            # As far as we can tell, only the code can have caused the crash.
            is_late = isinstance(error, MontyCrashedError) and error.timed_out
            return self._broken(FailureKind.DEADLINE if is_late else FailureKind.CPU, printed)
        name = type(error.exception()).__name__
        if name in ("MemoryError", "TimeoutError"):
            return self._broken(FailureKind.MEMORY if name == "MemoryError" else FailureKind.CPU, printed)
        message = error.display("type-msg")
        if frames := error.traceback():
            where = f" of step {number} ({program.steps[number - 1].name})" if len(program.steps) > 1 else ""
            message += f"\nin line {frames[-1].line}{where}: {(frames[-1].source_line or '').strip()}"
        if name in _UNSUPPORTED:
            message += "\nOnly a part of Python and of its standard library is available."
            return Failed(kind=FailureKind.UNSUPPORTED, message=message, stdout=printed.text("stdout"))
        return _raised(message, printed)

    def _broken(self, kind: FailureKind, printed: _Printed) -> Failed:
        return Failed(kind=kind, message=limit_message(kind, self._limits), stdout=printed.text("stdout"))


def _raised(message: str, printed: _Printed) -> Failed:
    return Failed(kind=FailureKind.RAISED, message=message, stdout=printed.text("stdout"))
