"""The engine monty: its results, its limits, and where it differs from Python."""
# R14

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_programs import needs_bubblewrap, program, sandboxed

from mcprl_market.python.monty import MontyEngine
from mcprl_market.python.programs import Failed, FailureKind, Limits, Program, Ran
from mcprl_market.python.sandbox import Sandbox

pytest.importorskip("pydantic_monty", reason="pydantic-monty is missing: run scripts/setup")

PATIENT = Limits(cpu_s=60, deadline_s=60.0)  # for what ends by itself, however busy the machine
PRICES = [213.88, 210.1, 0.0, -3.5, 1e16, 2.675, 1 / 3, 5e-324]
SAME = {
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


def given_names(code: str) -> Program:
    return program(code, data=PRICES, context={"rate": 1.1})


@pytest.mark.process
@needs_bubblewrap
async def test_monty_and_the_sandbox_give_the_same_outcome():
    async with Sandbox(sandboxed(), spares=2) as sandbox, MontyEngine(PATIENT) as monty:
        for name, code in SAME.items():
            ours, theirs = await sandbox.run(given_names(code)), await monty.run(given_names(code))
            assert isinstance(ours, Ran), (name, ours)
            assert theirs == ours, name


@pytest.mark.process
@needs_bubblewrap
async def test_rounding_to_digits_differs():
    async with Sandbox(sandboxed(), spares=0) as sandbox, MontyEngine(PATIENT) as monty:
        outcomes = [await engine.run(program("round(2.675, 2)")) for engine in (sandbox, monty)]
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Ran)] == [2.67, 2.68]


@pytest.mark.process
@needs_bubblewrap
async def test_the_text_of_a_float_may_differ():
    code = "str(-1351606456275813.2 + 46416)"
    async with Sandbox(sandboxed(), spares=0) as sandbox, MontyEngine(PATIENT) as monty:
        outcomes = [await engine.run(program(code)) for engine in (sandbox, monty)]
    texts = [outcome.value for outcome in outcomes if isinstance(outcome, Ran)]
    assert texts == ["-1351606456229397.2", "-1351606456229397.3"]
    assert float(texts[0]) == float(texts[1])


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
    async with MontyEngine(PATIENT) as monty:
        outcome = await monty.run(program(code))
    assert isinstance(outcome, Ran), outcome
    assert list(map(repr, outcome.value)) == list(map(repr, expected))


async def test_it_says_what_it_does_not_have():
    async with MontyEngine(PATIENT) as monty:
        outcome = await monty.run(program("x = 1\nimport pandas"))
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.UNSUPPORTED
    assert "No module named 'pandas'" in outcome.message
    assert "in line 2" in outcome.message


async def test_it_names_exceptions_and_steps():
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
async def test_it_keeps_its_limits(code, kind, time_s):
    # The first line is too much output already. Monty prints on until its time is over, all the same.
    async with MontyEngine(replace(PATIENT, output_bytes=999), time_s=time_s) as monty:
        outcome = await monty.run(program(code))
        assert isinstance(outcome, Failed)
        assert outcome.kind is kind
        monty._time_s = 60.0
        assert await monty.run(program("1 + 1")) == Ran(value=2, shown="2", stdout="", stderr="")


async def test_it_reaches_no_file_and_no_variable_of_the_host(monkeypatch):
    monkeypatch.setenv("MCPRL_TEST_CANARY", "secret")
    async with MontyEngine(PATIENT) as monty:
        for code in ("open('/etc/passwd').read()", "import os\nos.getenv('MCPRL_TEST_CANARY')", "import socket"):
            outcome = await monty.run(program(code))
            assert not isinstance(outcome, Ran) or outcome.value is None, code
