"""A second engine: Monty, an interpreter of a subset of Python that starts in less than a millisecond.

Alone (`MontyEngine`) it is for code that needs neither numpy nor pandas. Before the sandbox (`MontyFirst`) it runs only
what gives the same result in both, see `monty_subset`; and whatever fails in Monty is run again in the sandbox, whose
word counts. A program touches nothing, so that running it twice is harmless.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, Protocol, cast

from mcprl.errors import MissingExtraError
from mcprl_market.python.programs import Failed, FailureKind, Limits, Outcome, Program, Ran, Step
from mcprl_market.python.sandbox import limit_message, outcome_of_report
from mcprl_market.python.values import read_json
from mcprl_market.python.worker import report_of_value

if TYPE_CHECKING:
    from pydantic_monty import AsyncMonty, MontyError

__all__ = ["Engine", "MontyEngine", "MontyFirst", "is_same_in_monty"]


_NODES = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass),
    *(ast.FunctionDef, ast.Return, ast.Lambda, ast.arguments, ast.arg, ast.Import, ast.alias),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Attribute, ast.Name),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.List, ast.Tuple, ast.Dict, ast.Subscript, ast.Slice),
    *(ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Starred),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_BUILTINS = frozenset(
    (
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "isinstance", "len"),
        *("list", "map", "max", "min", "print", "range", "reversed", "round", "sorted", "sum", "tuple", "zip"),
    )
)
_METHODS = frozenset(
    (
        *("append", "count", "endswith", "extend", "find", "get", "index", "insert", "items", "join", "keys", "lower"),
        *("lstrip", "pop", "replace", "rstrip", "sort", "split", "splitlines", "startswith", "strip", "title", "upper"),
        "values",
    )
)
_EXACT_MATHS = frozenset(("ceil", "e", "fabs", "floor", "gcd", "isfinite", "isinf", "isnan", "pi", "sqrt", "trunc"))
_FORMAT = re.compile(r"[<>^]?\+?\d{0,3},?(\.\d{1,2})?[fdegsx%]")
_PYTHON_SUMS_LIKE_MONTY = sys.version_info < (3, 12)


def is_same_in_monty(code: str) -> bool:
    """Whether the code is in the subset. Code that is no Python is not: the sandbox says what is wrong with it.

    >>> is_same_in_monty("sum(x * 2 for x in data) / len(data)"), is_same_in_monty("round(2.675, 2)")
    (True, False)
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    # A name of its own for a builtin could stand for anything.
    return not bound & _BUILTINS and all(_is_same(node, bound) for node in nodes)


def _is_same(node: ast.AST, bound: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return not name.startswith("__") and (name in bound or name in _known_names())
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return name in _EXACT_MATHS
        case ast.Attribute(attr=name):
            return name in _METHODS
        case ast.Import(names=names):
            return all(alias.name == "math" and alias.asname is None for alias in names)
        case ast.Constant(value=value):
            return value is None or isinstance(value, bool | int | float | str)
        case ast.FormattedValue(conversion=conversion, format_spec=spec):
            return conversion == -1 and _is_plain_format(spec)
        case ast.Call(func=ast.Name(id="round"), args=arguments, keywords=keywords):
            return len(arguments) == 1 and not keywords
        case ast.Call(func=ast.Name(id="print"), args=arguments):
            return all(_is_text(argument) for argument in arguments)
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
            return False
        case ast.Is() | ast.IsNot() | ast.MatMult():
            return False
        case ast.FunctionDef(decorator_list=decorators, returns=returns):
            return not decorators and returns is None
        case _:
            return isinstance(node, _NODES)


def _known_names() -> frozenset[str]:
    names = _BUILTINS | {"data", "context", "math"}
    return names if _PYTHON_SUMS_LIKE_MONTY else names - {"sum"}


def _is_text(argument: ast.expr) -> bool:
    return isinstance(argument, ast.JoinedStr) or (
        isinstance(argument, ast.Constant) and not isinstance(argument.value, float)
    )


def _is_plain_format(spec: ast.expr | None) -> bool:
    match spec:
        case ast.JoinedStr(values=[ast.Constant(value=str(text))]):
            return _FORMAT.fullmatch(text) is not None
        case _:
            return False


_QUICK_S = 0.5
_GRACE_S = 1.0
_NOT_THERE = ("NotImplementedError", "ModuleNotFoundError", "ImportError")
_NAMES_RESULT = re.compile(r"\bresult\b")


class Engine(Protocol):
    """Something that runs programs."""

    async def run(self, program: Program) -> Outcome: ...


class _Printed:
    """What a program printed, up to a bound."""

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
    """Runs programs in Monty, each step in a session of its own. An asynchronous context manager.

    `time_s` bounds the time of one step, by default as the processor time in the sandbox.
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
                "the Python server is to use Monty, which is not installed", fix="pip install 'mcprl[market]'"
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
            # Nothing but the code could have made it crash, as far as one can tell.
            is_late = isinstance(error, MontyCrashedError) and error.timed_out
            return self._broken(FailureKind.DEADLINE if is_late else FailureKind.CPU, printed)
        name = type(error.exception()).__name__
        if name in ("MemoryError", "TimeoutError"):
            return self._broken(FailureKind.MEMORY if name == "MemoryError" else FailureKind.CPU, printed)
        message = error.display("type-msg")
        if frames := error.traceback():
            where = f" of step {number} ({program.steps[number - 1].name})" if len(program.steps) > 1 else ""
            message += f"\nin line {frames[-1].line}{where}: {(frames[-1].source_line or '').strip()}"
        if name in _NOT_THERE:
            message += "\nOnly a part of Python and of its standard library is available."
            return Failed(kind=FailureKind.UNSUPPORTED, message=message, stdout=printed.text("stdout"))
        return _raised(message, printed)

    def _broken(self, kind: FailureKind, printed: _Printed) -> Failed:
        return Failed(kind=kind, message=limit_message(kind, self._limits), stdout=printed.text("stdout"))


class MontyFirst:
    """Monty where it gives the same result, else the sandbox. Which one ran a program shows in nothing but the time."""

    def __init__(self, limits: Limits, sandbox: Engine) -> None:
        self.monty = MontyEngine(limits, time_s=_QUICK_S)
        self._sandbox = sandbox

    async def __aenter__(self) -> MontyFirst:
        await self.monty.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.monty.__aexit__()

    async def run(self, program: Program) -> Outcome:
        if all(is_same_in_monty(step.code) for step in program.steps):
            outcome = await self.monty.run(program)
            if isinstance(outcome, Ran):
                return outcome
        return await self._sandbox.run(program)


def _raised(message: str, printed: _Printed) -> Failed:
    return Failed(kind=FailureKind.RAISED, message=message, stdout=printed.text("stdout"))
