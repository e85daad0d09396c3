"""Renders the chat template of a model within limits on time and size, because a template is untrusted code.

The environment has the filters and functions of transformers. Jinja's sandbox hooks check the size of operands before
an operator, filter, method or join is computed. A limit on time covers everything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from operator import add, mod, mul
from types import BuiltinMethodType
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.runtime import Context
from transformers.utils import chat_template_utils

from mcprl.bounds import MAX_TEMPLATE_CHARS, MAX_TEMPLATE_OUTPUT, MAX_TEMPLATE_S, OverLimitError, limited_time, measure

_MAX_BITS = 4096
# Widths in format strings of `%` and `format`.
_WIDE = re.compile(r"\d{4}|\*")


class BadTemplateError(Exception):
    """A template cannot be compiled or rendered."""


class ChatTemplate:
    """A compiled chat template. `variables` are available to it in addition to the messages, such as `bos_token`.

    Until `loaded` is set, all renderings together share one time limit.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise BadTemplateError(f"it is longer than {MAX_TEMPLATE_CHARS} characters")
        self.loaded = False
        self._variables = variables
        self._seconds = MAX_TEMPLATE_S
        self._template = _run(lambda: _environment().from_string(source))

    def render(self, messages: Sequence[Mapping[str, Any]], *, opening: bool) -> str:
        """Return a conversation as text; with `opening`, with the start of a turn. Raises BadTemplateError."""
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": opening}
        started = time.thread_time()
        try:
            with limited_time(MAX_TEMPLATE_S if self.loaded else self._seconds, "render", file="<template>"):
                return _run(lambda: str(self._template.render(**self._variables, **given)))
        except OverLimitError as error:
            raise BadTemplateError(f"it {error}") from error
        finally:
            self._seconds = max(0.0, self._seconds - (time.thread_time() - started))


def _run(work: Callable[[], Any]) -> Any:
    """Run code compiled from a template. It may raise any exception that Python code may raise."""
    try:
        return work()
    except OverLimitError as error:
        raise BadTemplateError(f"it produces text that {error}") from error
    except TemplateError as error:
        raise BadTemplateError(str(error) or type(error).__name__) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, SyntaxError, TypeError, ValueError) as error:
        raise BadTemplateError(f"{type(error).__name__}: {error}") from error
    except (AssertionError, MemoryError) as error:
        raise BadTemplateError(f"it is too complex ({type(error).__name__})") from error


def _environment() -> Any:
    made: Any = cast("Any", chat_template_utils)._cached_compile_jinja_template("").environment
    made.intercepted_binops = frozenset(_OPERATORS)
    made.binop_table = made.binop_table | _OPERATORS
    made.filters = {name: _limited(each) for name, each in made.filters.items()}
    made.call = partial(_call, made.call)
    made.concat = _joined
    made.finalize = _finalized
    made.code_generator_class = _Generator
    return made


def _size(value: object) -> int:
    return measure(value, most_bytes=MAX_TEMPLATE_OUTPUT)


def _check(operands: Iterable[object]) -> None:
    """Refuse operands if the product of their two largest sizes is above the limit. A number counts as its value."""
    sizes = [abs(each) if isinstance(each, int) else _size(each) for each in operands]
    largest = sorted([1, 1, *sizes])[-2:]
    if largest[0] * largest[1] > MAX_TEMPLATE_OUTPUT:
        raise OverLimitError(f"may be longer than {MAX_TEMPLATE_OUTPUT} characters")


def _add(left: Any, right: Any) -> Any:
    if not isinstance(left, int | float) and _size(left) + _size(right) > MAX_TEMPLATE_OUTPUT:
        raise OverLimitError(f"is longer than {MAX_TEMPLATE_OUTPUT} characters")
    return add(left, right)


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_BITS:
            raise OverflowError("a number is too large")
    else:
        _check([each for each in (left, right) if not isinstance(each, float)])
    return mul(left, right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
        raise OverflowError("a number is too large")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, [right])
    return mod(left, right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"+": _add, "*": _multiply, "**": _power, "%": _modulo}


def _check_format(text: str, values: Iterable[object]) -> None:
    if _WIDE.search(text):
        raise OverLimitError("has a format with a large width")
    _check([text, *(str(each) if isinstance(each, int) else each for each in values)])


def _limited(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        if function.__name__ == "do_format":
            _check_format(str(arguments[0]), (*arguments[1:], *named.values()))
        else:
            # A number has no size as the input of a filter, only as an argument: 7 | round, but text | center(80).
            values = [each for each in (*arguments, *named.values()) if not isinstance(each, Context)]
            _check([each for n, each in enumerate(values) if n or not isinstance(each, int)])
        return function(*arguments, **named)

    return limited


def _call(call: Callable[..., Any], context: Any, callee: Any, /, *arguments: Any, **named: Any) -> Any:
    method = getattr(callee, "__wrapped__", callee)
    if isinstance(method, BuiltinMethodType):
        owner: Any = method.__self__
        values = (*arguments, *(each for name, each in named.items() if not name.startswith("_")))
        if isinstance(owner, str) and method.__name__ in ("format", "format_map"):
            _check_format(owner, values)
        else:
            _check([owner, *values])
    return call(context, callee, *arguments, **named)


def _joined(parts: Iterable[Any]) -> str:
    texts: list[str] = []
    length = 0
    for part in parts:
        texts.append(str(_finalized(part)))
        length += len(texts[-1])
        if length > MAX_TEMPLATE_OUTPUT:
            raise OverLimitError(f"is longer than {MAX_TEMPLATE_OUTPUT} characters")
    return "".join(texts)


def _finalized(value: object) -> object:
    container: object = value  # keep the type of `value` simple
    if isinstance(container, list | tuple | dict):
        _size(cast("object", container))
    return value


class _Generator(CodeGenerator):
    """Compiles `a ~ b` to a call of the environment's join."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")
