"""The error tree: each error has a code of its own, a kind of fault, and says what to do."""

from __future__ import annotations

import pickle
import re

import pytest

from mcprl import errors
from mcprl.errors import (
    CallDeadlineError,
    ConfigurationError,
    Fault,
    InfrastructureError,
    McprlError,
    UnknownToolError,
)

CONCRETE = [
    value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, McprlError) and "code" in vars(value)
]


def test_an_error_is_one_sentence_with_code_and_fix():
    error = UnknownToolError("no server lists a tool 'x'", fix="correct the task")
    assert str(error) == "E-TOOL-003 no server lists a tool 'x'. Fix: correct the task."
    assert (error.what, error.fix) == ("no server lists a tool 'x'", "correct the task")


def test_an_error_without_a_fix_cannot_be_made():
    with pytest.raises(TypeError, match="fix"):
        UnknownToolError("no such tool")  # pyright: ignore[reportCallIssue]


def test_every_code_is_used_once_and_well_formed():
    codes = [error.code for error in CONCRETE]
    assert len(codes) > 20
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"E-[A-Z]+-\d{3}", code)] == []


def test_the_branch_tells_whose_fault_it_is_and_the_number_agrees():
    for error in CONCRETE:
        assert issubclass(error, ConfigurationError) != issubclass(error, InfrastructureError)
        expected = Fault.CONFIGURATION if issubclass(error, ConfigurationError) else Fault.INFRASTRUCTURE
        assert error.fault is expected
        # Infrastructure is numbered from 010, so that a code alone tells the branch.
        assert (int(error.code[-3:]) >= 10) == (expected is Fault.INFRASTRUCTURE)


def test_the_tree_in_the_documentation_lists_every_error_with_its_code_and_nothing_else():
    listed = re.findall(r"── (\w+)\s+(E-\S+) ", errors.__doc__ or "")
    assert sorted(listed) == sorted((error.__name__, error.code) for error in CONCRETE)


def test_every_error_is_exported():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__.startswith(errors.__name__)
    }
    assert defined == {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}


def test_an_error_is_the_same_in_another_process():
    for error in CONCRETE:
        made = error("it failed", fix="fix it")
        copy = pickle.loads(pickle.dumps(made))
        assert type(copy) is error
        assert (str(copy), copy.args, vars(copy)) == (str(made), made.args, vars(made))


def test_what_an_error_knows_besides_goes_with_it():
    lost = pickle.loads(pickle.dumps(CallDeadlineError("late", fix="wait", delivered=False, retry_after_s=2.5)))
    assert (lost.delivered, lost.retry_after_s) == (False, 2.5)
