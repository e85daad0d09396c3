"""Monty: alone it runs what it can; before the sandbox it changes nothing but the time."""
# R14

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_programs import HONEST, needs_bubblewrap, program, sandboxed

from mcprl_market.python.monty import MontyEngine, MontyFirst, is_same_in_monty
from mcprl_market.python.programs import Failed, FailureKind, Limits, Outcome, Program, Ran
from mcprl_market.python.sandbox import Sandbox

pytest.importorskip("pydantic_monty", reason="pydantic-monty is missing: run scripts/setup")

PATIENT = Limits(cpu_s=60, deadline_s=60.0)  # for what ends by itself, however busy the machine
PRICES = [213.88, 210.1, 0.0, -3.5, 1e16, 2.675, 1 / 3, 5e-324]
IN_SUBSET = {
    "arithmetic": "[(x + 1, x - 1, x * 3, x / 7, x // 2, x % 3, -x, abs(x)) for x in data]",
    "powers": "[abs(x) ** 0.5 if abs(x) < 1000 else 0 for x in data]",
    "whole numbers": "[2 ** 70, -7 // 2, -7 % 3, divmod(17, -5), 10 ** 20 // 7, int('42'), int(3.9), bool(0)]",
    "one digit": "[round(x) for x in data]",
    "formats": "[f'{x:.2f} {x:,.1f} {x:>12.3f} {x:.1%} {x:.3e} {x:g}' for x in data]",
    "formats of whole numbers": "[f'{n:,d} {n:05d} {n:>8d}' for n in [0, 1234567, -42]]",
    "order": "(sorted(data), sorted(data, reverse=True), min(data), max(data), list(reversed(data)))",
    "order by key": "sorted([('b', 2), ('a', 2), ('c', 1)], key=lambda pair: (-pair[1], pair[0]))",
    "lists": "x = []\nfor i in range(5):\n    x.append(i * i)\nx.extend([9, 9])\nx.insert(0, 7)\nx.pop()\n(x, x[1:3])",
    "dicts": "d = {}\nfor w in 'a b a'.split():\n    d[w] = d.get(w, 0) + 1\n(d, list(d.items()), list(d.values()))",
    "comprehensions": "({k: v for k, v in zip('abc', range(3))}, [a for b in [[1], [2]] for a in b])",
    "functions": "def mean(values, shift=0):\n    return sum(values) / len(values) + shift\nmean([1, 2, 4], shift=1)",
    "recursion": "def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(30)",
    "texts": "t = ' Ünïcode, naïve '\n(t.strip().upper(), t.split(','), t.replace('ï', 'i'), t.title(), t[::-1])",
    "printing": "print(1, 'a', True, None, f'{data[0]:.1f}', sep='|', end='!\\n')\nprint()",
    "conditions": "x = 0\nwhile True:\n    x += 1\n    if x > 5 and not x % 3 == 1:\n        break\nx if x else None",
    "result": "result = {'up': [x for x in data if x > 0]}\nprint('done')",
    "exact maths": "import math\n(math.sqrt(2), math.floor(-2.5), math.ceil(2.1), math.pi, math.isnan(data[0]))",
    "context": "context['rate'] * data[0]",
    "nothing": "x = 1",
}
NOT_IN_SUBSET = {
    "rounding to digits": "round(2.675, 2)",
    "texts of floats": "[str(x) for x in data]",
    "floats in texts": "[f'{x}' for x in data]",
    "floats in formats without a type": "[f'{x:,}' for x in data]",
    "printed floats": "print(data[0])",
    "other functions of maths": "import math\nmath.gamma(4.5)",
    "sets": "{3, 1, 2}",
    "catching": "try:\n    'a'.nothing()\nexcept AttributeError:\n    result = 1",
    "looking for features": "hasattr('a', 'removeprefix')",
    "modules": "import json\njson.dumps({})",
    "pandas": "pd.Series([1]).sum()",
    "classes": "class A:\n    pass",
    "another name for a builtin": "sum = len\nsum([1])",
    "an attribute beneath": "(1).__class__",
    "identity": "1000 is 1000",
    "old formats": "'%.2f' % 2.675",
    "no Python": "def f(:",
    "files": "open('/etc/passwd')",
}
FAILING = ("1 / 0", "data['k']", "nothing", "[][0]", "int('x')", "'a' + 1", "def f(n):\n    return f(n + 1)\nf(0)")


class Counting:
    """The sandbox, and how often it was asked."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.count = 0

    async def run(self, program: Program) -> Outcome:
        self.count += 1
        return await self.sandbox.run(program)


def given_names(code: str) -> Program:
    return program(code, data=PRICES, context={"rate": 1.1})


@pytest.mark.parametrize("name", IN_SUBSET)
def test_what_has_been_compared_is_in_the_subset(name):
    expected = sys.version_info < (3, 12) or "sum(" not in IN_SUBSET[name]
    assert is_same_in_monty(IN_SUBSET[name]) is expected


@pytest.mark.parametrize("name", NOT_IN_SUBSET)
def test_what_differs_or_could_is_not_in_the_subset(name):
    assert not is_same_in_monty(NOT_IN_SUBSET[name])


@pytest.mark.process
@needs_bubblewrap
async def test_both_engines_give_the_same_outcome_on_the_subset():
    async with Sandbox(sandboxed(), spares=2) as sandbox, MontyEngine(PATIENT) as monty:
        for name, code in IN_SUBSET.items():
            ours, theirs = await sandbox.run(given_names(code)), await monty.run(given_names(code))
            assert isinstance(ours, Ran), (name, ours)
            assert theirs == ours, name


@pytest.mark.process
@needs_bubblewrap
async def test_rounding_to_digits_is_why_not_everything_goes_to_monty():
    async with Sandbox(sandboxed(), spares=0) as sandbox, MontyEngine(PATIENT) as monty:
        outcomes = [await engine.run(program("round(2.675, 2)")) for engine in (sandbox, monty)]
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Ran)] == [2.67, 2.68]


@pytest.mark.process
@needs_bubblewrap
async def test_the_text_of_a_float_is_another_reason():
    code = "str(-1351606456275813.2 + 46416)"
    async with Sandbox(sandboxed(), spares=0) as sandbox, MontyEngine(PATIENT) as monty:
        outcomes = [await engine.run(program(code)) for engine in (sandbox, monty)]
    texts = [outcome.value for outcome in outcomes if isinstance(outcome, Ran)]
    assert texts == ["-1351606456229397.2", "-1351606456229397.3"]
    assert float(texts[0]) == float(texts[1])


@pytest.mark.process
@needs_bubblewrap
async def test_with_both_only_what_monty_cannot_settle_reaches_the_sandbox(monkeypatch):
    monkeypatch.setattr("mcprl_market.python.monty._QUICK_S", 60.0)
    async with Sandbox(sandboxed(), spares=1) as sandbox:
        counted = Counting(sandbox)
        async with MontyFirst(Limits(), counted) as both:
            assert await both.run(given_names(IN_SUBSET["order"])) == await sandbox.run(given_names(IN_SUBSET["order"]))
            assert counted.count == 0
            for number, code in enumerate((*NOT_IN_SUBSET.values(), *FAILING), start=1):
                assert await both.run(given_names(code)) == await sandbox.run(given_names(code)), code
                assert counted.count == number


@pytest.mark.process
@needs_bubblewrap
async def test_with_both_a_program_that_takes_long_in_monty_still_gives_its_result():
    code = "n = 0\nfor i in range(3000000):\n    n += i % 7\nn"
    async with Sandbox(sandboxed(), spares=0) as sandbox, MontyFirst(Limits(), sandbox) as both:
        outcome = await both.run(program(code))
    total = sum(i % 7 for i in range(3000000))
    assert outcome == Ran(value=total, shown=str(total), stdout="", stderr="")


numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False, width=64))
operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "=="])


@st.composite
def expressions(draw: Any, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return f"({draw(numbers)!r})"
    return f"({draw(expressions(depth - 1))} {draw(operators)} {draw(expressions(depth - 1))})"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(expressions(), min_size=5, max_size=20))
async def test_monty_computes_as_python_does(texts):
    expected: list[object] = []
    codes: list[str] = []
    for text in texts:
        try:
            value = eval(text)
        except (ArithmeticError, ValueError):
            continue
        # JSON, in which a program's value comes, has no infinity.
        if not isinstance(value, float) or math.isfinite(value):
            expected.append(value)
            codes.append(text)
    code = f"[{', '.join(codes)}]"
    assert is_same_in_monty(code)
    async with MontyEngine(PATIENT) as monty:
        outcome = await monty.run(program(code))
    assert isinstance(outcome, Ran), outcome
    assert list(map(repr, outcome.value)) == list(map(repr, expected))


async def test_alone_it_says_what_it_does_not_have():
    async with MontyEngine(PATIENT) as monty:
        outcome = await monty.run(program("x = 1\nimport pandas"))
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNSUPPORTED
    assert "No module named 'pandas'" in outcome.message
    assert "in line 2" in outcome.message


async def test_alone_it_names_exceptions_and_steps():
    async with MontyEngine(PATIENT) as monty:
        outcome = await monty.run(program("[1, 2]", "print(data)\ndata[5]"))
    assert isinstance(outcome, Failed)
    assert outcome.stdout == "[1, 2]\n"
    assert outcome.message.startswith("IndexError: list index out of range\nin line 2 of step 2 (step 2): data[5]")


@pytest.mark.parametrize(
    ("code", "kind", "time_s"),
    [
        ("while True: pass", FailureKind.CPU, 1.0),
        ("x = [1] * 10**9", FailureKind.MEMORY, 60.0),
        ("while True: print('x' * 1000)", FailureKind.OUTPUT, 1.0),
    ],
)
async def test_alone_it_keeps_its_limits(code, kind, time_s):
    # The first line is too much output already. Monty prints on until its time is over, all the same.
    async with MontyEngine(replace(PATIENT, output_bytes=999), time_s=time_s) as monty:
        outcome = await monty.run(program(code))
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind
        monty._time_s = 60.0
        assert await monty.run(program("1 + 1")) == Ran(value=2, shown="2", stdout="", stderr="")


async def test_alone_it_reaches_no_file_and_no_variable_of_the_host(monkeypatch):
    monkeypatch.setenv("MCPRL_TEST_CANARY", "secret")
    async with MontyEngine(PATIENT) as monty:
        for code in ("open('/etc/passwd').read()", "import os\nos.getenv('MCPRL_TEST_CANARY')", "import socket"):
            outcome = await monty.run(program(code))
            assert not isinstance(outcome, Ran) or outcome.value is None, code


def test_honest_programs_are_mostly_for_the_sandbox():
    assert sum(is_same_in_monty(code) for code, _ in HONEST.values()) < len(HONEST) / 2
