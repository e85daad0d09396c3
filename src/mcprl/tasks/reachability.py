"""Checks of a goal that no episode could pass, and solutions that could not be played."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mcprl.goals import ExpectedText, HasAll, HasNumber, Matches
from mcprl.patterns import why_no_pattern
from mcprl.records import Task
from mcprl.tasks.call_checks import ToolsByName, check_call

__all__ = ["unreachable_checks"]

# More than anyone writes of a price, a ratio or a percentage.
_DECIMALS = 4
_SIGNIFICANT = 6


def unreachable_checks(task: Task, tools: ToolsByName, turns: int) -> Iterator[str]:
    """What of the task cannot be reached within `turns`, one sentence each. Unknown tools are another matter."""
    yield from _calls(task, tools)
    yield from _turns(task, turns)
    for text in [task.goal.answer] if task.goal.answer is not None else []:
        yield from (f"its answer {problem}" for problem in _impossible(text))
    for state in task.goal.state:
        if state.tool in tools:
            for problem in check_call(state.tool, state.arguments, tools).problems:
                yield f"the state is asked from {state.tool}, which {_of_tool(problem)}"
        for text in state.texts:
            yield from (f"the state of {state.tool} {problem}" for problem in _impossible(text))


def _calls(task: Task, tools: ToolsByName) -> Iterator[str]:
    needed = [(call.tool, call.arguments) for call in task.goal.calls]
    solved = [(call.name, call.arguments) for call in task.solution.calls] if task.solution is not None else []
    for who, calls, partial in (("it", needed, True), ("its solution", solved, False)):
        for name, arguments in calls:
            if task.tools is not None and name not in task.tools:
                yield f"{who} needs {name}, which is not among its tools"
            elif name in tools:
                for problem in check_call(name, arguments, tools, partial=partial).problems:
                    yield f"{who} needs {name}, which {_of_tool(problem)}"


def _of_tool(problem: str) -> str:
    return problem.replace("lacks the argument", "is not given")


def _turns(task: Task, turns: int) -> Iterator[str]:
    needed = max(len(task.goal.calls), task.goal.min_calls)
    answer = task.goal.answer is not None
    if needed + answer > turns:
        yield f"it needs {needed} calls{' and an answer' if answer else ''}, one a turn, but may take {turns} turns"
    solved = len(task.solution.calls) + 1 if task.solution is not None else 0
    if solved > turns:
        yield f"its solution takes {solved} turns, but it may take {turns}"


def _impossible(text: ExpectedText) -> Iterator[str]:
    match text:
        case Matches():
            problem = why_no_pattern(text.pattern)
            if problem is not None:
                yield f"can match nothing: {problem}"
        case HasNumber():
            rounded = _as_written(text.value)
            if not abs(rounded - text.value) <= text.tolerance:
                yield (
                    f"must be {text.value!r} to within {text.tolerance:g}, which even {rounded!r} is not: "
                    f"the tolerance is below the rounding"
                )
        case HasAll():
            both = [word for word in text.members if word.casefold() in {other.casefold() for other in text.none_of}]
            if both:
                yield f"must have {both[0]!r} and must not have it"
        case _:
            pass


def _as_written(value: float) -> float:
    """The value as someone writes it who rounds to 4 decimals, or to 6 significant digits where that is finer."""
    if value == 0 or not math.isfinite(value):
        return value
    magnitude = math.floor(math.log10(abs(value)))
    return round(value, max(_DECIMALS, _SIGNIFICANT - 1 - magnitude))
