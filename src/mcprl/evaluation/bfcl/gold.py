"""The official answers as calls. They are Python texts in the wheel; here they are read, and never evaluated."""

from __future__ import annotations

import ast
import threading
from collections.abc import Sequence
from typing import Any

from mcprl.records import ToolCall
from mcprl.servers.bfcl.simulators import parameter_names
from mcprl.servers.bfcl.wheel import Entry, gold_answers

__all__ = ["calls_before_offer", "gold_calls", "read_call"]

# Tasks are judged in threads, and Python 3.11 counts the depth of a syntax tree once for all of them: where two threads
# parse at the same time, one may be told "AST constructor recursion depth mismatch".
_parsing = threading.Lock()


def gold_calls(entry: Entry) -> tuple[tuple[ToolCall, ...], ...]:
    """The calls that solve a task, a tuple for each time that the user speaks."""
    return tuple(tuple(map(read_call, calls)) for calls in gold_answers(entry.category)[entry.id])


def read_call(text: str) -> ToolCall:
    """One call of an answer: read_call("sort('a.txt')") is the call of `sort` with file_name a.txt.

    Raises ValueError for a text that is anything but one call with literal arguments.
    """
    try:
        with _parsing:
            call = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no Python") from error
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise ValueError(f"{text!r} is no call of a function")
    names = parameter_names(call.func.id) if call.args else ()
    arguments: dict[str, Any] = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{text!r} hides its arguments")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ToolCall(name=call.func.id, arguments=arguments)


def calls_before_offer(entry: Entry, gold: Sequence[Sequence[ToolCall]]) -> frozenset[str]:
    """Functions that the answer itself calls before they are announced: one, in multi_turn_miss_func_49."""
    return frozenset(
        call.name
        for announced, names in entry.held_back.items()
        for calls in gold[:announced]
        for call in calls
        if call.name in names
    )
