"""What programs give back from the sandbox: values, output, and errors that a policy can act on."""
# R14, R17

from __future__ import annotations

import pytest
from python_programs import HONEST, needs_bubblewrap, program, sandboxed

from mcprl_market.python.programs import Failed, FailureKind, Ran
from mcprl_market.python.sandbox import Sandbox
from mcprl_market.python.worker import MAX_DEPTH

pytestmark = [pytest.mark.process, needs_bubblewrap]


@pytest.fixture
async def sandbox():
    async with Sandbox(sandboxed(), spares=0) as made:
        yield made


@pytest.mark.parametrize("name", HONEST)
async def test_an_honest_program_gives_its_value(sandbox, name):
    code, value = HONEST[name]
    outcome = await sandbox.run(program(code))
    assert isinstance(outcome, Ran), outcome
    assert outcome.value == value
    assert outcome.stderr == ""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", "2"),
        ("'text'", "text"),
        ("{'a': (1, 2.5), 3: None}", '{"a": [1, 2.5], "3": null}'),
        ("float('nan')", "NaN"),
        ("{'b', 'a'}", '["a", "b"]'),
        ("np.float64(1.5), np.int64(2), np.bool_(True)", "[1.5, 2, true]"),
        ("np.array([1, 2])", "[1 2]"),
        ("pd.DataFrame({'a': [1]})", "   a\n0  1"),
        ("from decimal import Decimal\nDecimal('1.10')", "1.10"),
        ("object", "<class 'object'>"),
        ("None", None),
        ("result = 5", "5"),
        ("result = 5\nprint(result)", "5"),
        ("result = 5\n6", "6"),
        ("x = 1", None),
        ("", None),
    ],
)
async def test_the_value_is_the_last_expression_or_the_variable_result(sandbox, code, shown):
    outcome = await sandbox.run(program(code))
    assert isinstance(outcome, Ran), outcome
    assert outcome.shown == shown


async def test_output_and_complaints_are_kept_apart_and_whole(sandbox):
    code = "import sys\nprint('é' * 200_000)\nprint('careful', file=sys.stderr)\nsys.stdout.write('end')\nNone"
    outcome = await sandbox.run(program(code))
    assert outcome == Ran(value=None, shown=None, stdout="é" * 200_000 + "\nend", stderr="careful\n")


async def test_code_sees_the_names_it_was_given_and_cannot_change_ours(sandbox):
    names = {"data": [1, 2], "context": {"rate": 0.5}}
    outcome = await sandbox.run(program("data.append(context.pop('rate'))\ndata", **names))
    assert isinstance(outcome, Ran)
    assert outcome.value == [1, 2, 0.5]
    assert names == {"data": [1, 2], "context": {"rate": 0.5}}


async def test_each_step_works_on_the_value_of_the_one_before(sandbox):
    steps = ("pd.DataFrame(data)", "result = data[data['x'] > 1]", "y = 7", "int(data['x'].sum())")
    outcome = await sandbox.run(program(*steps, data=[{"x": 1}, {"x": 2}, {"x": 3}]))
    assert isinstance(outcome, Ran), outcome
    assert outcome.value == 5


async def test_steps_share_no_variables(sandbox):
    outcome = await sandbox.run(program("y = 7", "y"))
    assert isinstance(outcome, Failed)
    assert outcome.message == "NameError: name 'y' is not defined\nin line 1 of step 2 (step 2): y"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n\ny = x / 0", "ZeroDivisionError: division by zero\nin line 3: y = x / 0"),
        ("def f():\n    return {}['k']\n\nf()", "KeyError: 'k'\nin line 2: return {}['k']"),
        ("import json\njson.loads('{')", "in line 2: json.loads('{')"),
        ("if True\n    pass", "SyntaxError: expected ':'\nin line 1: if True"),
        ("import scipy", "Only the standard library, numpy and pandas are installed."),
        ("import sys\nsys.exit('gave up')", "SystemExit: gave up\nin line 2: sys.exit('gave up')"),
        ("raise ValueError", "ValueError\nin line 1: raise ValueError"),
        ("input()", "EOFError"),
        ("10 ** 5000", "ValueError: Exceeds the limit"),
    ],
)
async def test_an_exception_is_reported_with_its_line(sandbox, code, message):
    outcome = await sandbox.run(program(code))
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.RAISED
    assert message in outcome.message
    assert "/python" not in outcome.message


async def test_a_value_may_be_nested_only_so_deep(sandbox):
    for levels in (MAX_DEPTH - 1, MAX_DEPTH):
        outcome = await sandbox.run(program(f"x = 0\nfor _ in range({levels}): x = [x]\nx"))
        assert isinstance(outcome, Ran) is (levels < MAX_DEPTH)
    assert outcome == Failed(
        kind=FailureKind.RAISED, message="ValueError: the result is nested more than 63 levels deep"
    )


async def test_what_was_printed_before_an_exception_is_kept(sandbox):
    outcome = await sandbox.run(program("print('before')\n1 / 0"))
    assert isinstance(outcome, Failed)
    assert outcome.stdout == "before\n"


async def test_a_program_may_end_itself_well(sandbox):
    assert await sandbox.run(program("print(1)\nexit()")) == Ran(value=None, shown=None, stdout="1\n", stderr="")


async def test_a_program_that_is_too_large_is_refused_before_it_runs(sandbox):
    outcome = await sandbox.run(program("data", data="x" * (17 * 1024 * 1024)))
    assert outcome == Failed(kind=FailureKind.MEMORY, message="The code and its data are larger than 16 MB.")


async def test_large_data_goes_in_and_a_small_result_comes_out(sandbox):
    outcome = await sandbox.run(program("len(data)", data=["x" * 100] * 100_000))
    assert isinstance(outcome, Ran)
    assert outcome.value == 100_000


@pytest.mark.parametrize(
    ("limits", "code", "message"),
    [
        ({"cpu_s": 1}, "while True: pass", "The code took more than 1 s of CPU time and was killed."),
        (
            {"cpu_s": 1, "deadline_s": 120.0},
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            "The interpreter was killed by SIGKILL.",
        ),
        ({"deadline_s": 0.3}, "import time\ntime.sleep(60)", "The code did not finish within 0.3 s and was killed."),
        ({}, "bytearray(2 ** 31)", "The code exceeded the memory limit of 1024 MB."),
        ({}, "print('x' * 2 ** 21)", "The code exceeded the output limit of 1 MB."),
        ({}, "'x' * 2 ** 21", "The result exceeds the limit of 1 MB."),
        (
            {},
            "for n in range(10**6): open(f'/tmp/{n}', 'w').close()",
            "The code exceeded the limit of 4096 files.",
        ),
        ({}, "import os\nos._exit(3)", "The code exited the interpreter with status 3."),
    ],
)
async def test_a_broken_limit_is_named(limits, code, message):
    async with Sandbox(sandboxed(**limits), spares=0) as sandbox:
        outcome = await sandbox.run(program(code))
    assert isinstance(outcome, Failed)
    assert outcome.message == message


async def test_the_same_program_gives_the_same_result_every_time(sandbox):
    code = "print({str(n) for n in range(50)}, hash('x'))"
    outcomes = [await sandbox.run(program(code)) for _ in range(3)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert isinstance(outcomes[0], Ran)
