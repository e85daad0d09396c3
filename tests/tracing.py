"""How far coverage follows the tests: to trace costs as much again as the tests themselves."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

# The later examples of a property run the lines of the earlier ones, and are most of what is traced. Whatever they
# alone would find is missing in the published share, which can only be too small by that.
TRACED_EXAMPLES = 20
# Of the programs that tests start, those are measured that run what no test runs in its own process: to measure the
# others, which start by the hundred, takes up to twice the time and finds no more lines.
MEASURED_CHILDREN = (
    "unit/",
    "security/test_canaries.py",
    "e2e/test_two_processes.py",
    "e2e/test_whole_weights.py",
    "e2e/test_ray_workers.py",
)


@contextmanager
def paused() -> Generator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


@contextmanager
def few_examples(test: Callable[..., Any]) -> Generator[None]:
    """Trace no more than the first examples, if the test is of a property."""
    handle, tracer = getattr(test, "hypothesis", None), sys.gettrace()
    # pytest-asyncio replaces the inner test of a property that is a coroutine, and counts on its being one.
    if handle is None or tracer is None or inspect.iscoroutinefunction(handle.inner_test):
        yield
        return
    inner, seen = handle.inner_test, 0

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen > TRACED_EXAMPLES:
            sys.settrace(None)
        return inner(*args, **kwargs)

    handle.inner_test = counted
    try:
        yield
    finally:
        handle.inner_test = inner
        sys.settrace(tracer)


@contextmanager
def measured_children(test_file: str) -> Generator[None]:
    """Coverage follows into the programs that a test starts only where MEASURED_CHILDREN says so."""
    with pytest.MonkeyPatch.context() as patch:
        if not test_file.startswith(MEASURED_CHILDREN):
            for name in set(os.environ) - set(without_coverage(os.environ)):
                patch.delenv(name)
        yield


def without_coverage(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(("COV_", "COVERAGE_"))}
