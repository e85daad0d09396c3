"""Measures the promises of promises.toml and says which hold.

A promise is kept by one of:

  command = "…"               exit status 0 means that it holds;
  command = "…", figure, bar  the last line on stdout is a JSON object, and its entry `figure` is held against `bar`;
  test = "tests/…::test_…"    the test passes; with figure and bar, on what it recorded with `record_property`.

A test with covered_by = "pytest" is not run again where --junit names the report of a pytest run: the verdict is read
there. Promises that share a command share its run, and all tests that have to run share one pytest.

A command has the machine to itself, as what is timed must. Those with beside = true, which look at what happens and not
at how fast, run first and two at a time, those that take longest (about_s) before the others; what such a command says
is shown when it has ended. With --full every command has the machine to itself.

A promise with timed = true is about speed. Where it is missed it is measured once more when all others have been, and
both figures are shown: a machine that is shared has slow minutes, and what is slow itself is slow in the second too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import operator
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}
LANES = 2
BAR = re.compile(r"(<=|>=|<|>|==)\s*([-+0-9.eE]+)$")


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One entry of promises.toml.

    Promise(id="parity", says="Sampler and learner agree on every token.", command="python bench/parity.py",
            figure="max_abs_error", bar="<= 1e-4", full="python bench/parity.py --model Qwen/Qwen3-0.6B")
    """

    id: str
    says: str
    command: str | None = None
    test: str | None = None
    covered_by: str | None = None
    figure: str | None = None
    bar: str | None = None
    size: str = "ci"
    full: str | None = None
    timeout_s: float = 900.0
    beside: bool = False
    about_s: float = 0.0
    timed: bool = False

    def __post_init__(self) -> None:
        if (self.command is None) == (self.test is None):
            raise ValueError("needs either `command` or `test`")
        if self.covered_by not in (None, "pytest") or (self.covered_by and self.test is None):
            raise ValueError('`covered_by` can only be "pytest", and needs `test`')
        if (self.figure is None) != (self.bar is None):
            raise ValueError("`figure` and `bar` go together")
        if self.bar is not None and not BAR.match(self.bar):
            raise ValueError(f'`bar` is {self.bar!r}; write it like "<= 1e-4"')
        if self.size not in ("ci", "full"):
            raise ValueError('`size` is "ci" or "full"')
        if self.beside and self.command is None:
            raise ValueError("`beside` needs `command`")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run showed: `problem` is None where it succeeded; `figures` are what it recorded."""

    problem: str | None
    figures: Mapping[str, object]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One row of the table."""

    id: str
    says: str
    measured: str
    bar: str
    holds: bool | None  # None: not measured at this size
    seconds: float


def read_promises(path: Path) -> list[Promise]:
    """All promises of a file. A mistake in it ends the program with a sentence."""
    try:
        entries = tomllib.loads(path.read_text())["promise"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise SystemExit(f"{path}: {error!r}. It needs [[promise]] entries.") from error
    promises: list[Promise] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("id", f"number {number}")
        try:
            promises.append(Promise(**entry))
        except (TypeError, ValueError) as error:
            raise SystemExit(f"{path}: promise {name}: {error}.") from error
        if name in [p.id for p in promises[:-1]]:
            raise SystemExit(f"{path}: two promises have the id {name}.")
    return promises


def run_command(command: str, timeout_s: float, *, said: IO[str] | None = None) -> Outcome:
    """Run a shell command in the repository, with its environment's programs on PATH.

    What it says on stderr, and all that it printed where it failed, goes to ours or to the file `said`.
    """
    started = time.monotonic()
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        command, shell=True, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
        text=True, start_new_session=True,
    )  # fmt: skip
    problem = None
    try:
        stdout, _ = process.communicate(timeout=timeout_s)
        if process.returncode:
            problem = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"no end after {timeout_s:g} s"
        os.killpg(process.pid, signal.SIGKILL)
        stdout, _ = process.communicate()
    if problem:
        print(f"$ {command}\n{stdout}\n({problem})", file=said or sys.stderr, flush=True)
    return Outcome(problem=problem, figures=last_json(stdout), seconds=time.monotonic() - started)


def last_json(stdout: str) -> Mapping[str, object]:
    """The object on the last line that is not empty, or nothing where there is none."""
    lines = stdout.strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def read_junit(path: Path, test: str) -> Outcome:
    """What a pytest report says about a test id: a function (with all its parameters), a class or a file."""
    cases = [case for case in ET.parse(path).iter("testcase") if is_of(case, test)]
    seconds = sum(float(case.get("time", "0")) for case in cases)
    problem = None if cases else "did not run"
    figures: dict[str, object] = {}
    for case in cases:
        for outcome in ("failure", "error", "skipped"):
            if case.find(outcome) is not None:
                problem = f"{case.get('name')}: {outcome}"
        for item in case.iter("property"):
            figures[item.get("name", "")] = item.get("value")
    return Outcome(problem=problem, figures=figures, seconds=seconds)


def is_of(case: ET.Element, test: str) -> bool:
    """Whether a test case of a report belongs to a pytest node id."""
    path, *names = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    full_name = f"{case.get('classname')}.{case.get('name')}"
    wanted = ".".join([module, *names])
    return full_name == wanted or full_name.startswith((wanted + ".", wanted + "["))


def run_tests(tests: list[str], timeout_s: float) -> dict[str, Outcome]:
    """Run tests in one pytest and read what its report says about each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        arguments = ["pytest", "-q", f"--junit-xml={report}", *dict.fromkeys(tests)]
        run = run_command(shlex.join(arguments), timeout_s)
        if not report.exists():
            return {test: Outcome(problem=run.problem, figures={}, seconds=run.seconds) for test in tests}
        return {test: read_junit(report, test) for test in tests}


def judge(promise: Promise, outcome: Outcome) -> Verdict:
    """Hold an outcome against the bar."""
    row = {"id": promise.id, "says": promise.says, "bar": promise.bar or "passes", "seconds": outcome.seconds}
    if outcome.problem:
        return Verdict(**row, measured=outcome.problem, holds=False)
    if promise.figure is None or promise.bar is None:
        return Verdict(**row, measured="passes", holds=True)
    value = outcome.figures.get(promise.figure)
    try:
        number = float(str(value))
    except ValueError:
        return Verdict(**row, measured=f"no figure {promise.figure}", holds=False)
    sign, bound = BAR.match(promise.bar).groups()
    return Verdict(**row, measured=f"{number:.4g}", holds=COMPARE[sign](number, float(bound)))


def run_beside(promises: Iterable[Promise]) -> dict[str, Outcome]:
    """Run the commands of these promises two at a time; not those that another of their promises wants alone."""
    commands: dict[str, list[Promise]] = {}
    for promise in promises:
        if promise.command:
            commands.setdefault(promise.command, []).append(promise)
    shared = {command: own for command, own in commands.items() if all(promise.beside for promise in own)}

    def run(command: str) -> tuple[str, Outcome, str]:
        # A file, not a pipe: what a command leaves running would hold a pipe open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            outcome = run_command(command, max(promise.timeout_s for promise in shared[command]), said=said)
            said.seek(0)
            return command, outcome, said.read()

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(LANES) as lanes:
        longest_first = sorted(shared, key=lambda command: -max(promise.about_s for promise in shared[command]))
        for done in as_completed([lanes.submit(run, command) for command in longest_first]):
            command, outcomes[command], said = done.result()
            print(f"{shared[command][0].id}: {command}\n{said}", end="", file=sys.stderr, flush=True)
    return outcomes


def measure(promises: Iterable[Promise], *, full: bool, junit: Path | None) -> list[Verdict]:
    """Run what has to run, each thing once, and judge every promise in the order of the file."""
    promises = list(promises)
    due = [p for p in promises if full or p.size == "ci"]
    read = {p.id: read_junit(junit, p.test) for p in due if junit and p.covered_by}
    verdicts = measure_now([p for p in due if p.id not in read], full=full)
    verdicts |= {p.id: judge(p, read[p.id]) for p in due if p.id in read}
    missed = [p for p in due if p.timed and not verdicts[p.id].holds]
    for id, again in measure_now(missed, full=full).items():
        both = f"{verdicts[id].measured}, then {again.measured}"
        verdicts[id] = dataclasses.replace(again, measured=both, seconds=verdicts[id].seconds + again.seconds)
    return [verdicts.get(p.id) or not_measured(p) for p in promises]


def measure_now(promises: list[Promise], *, full: bool) -> dict[str, Verdict]:
    """The verdicts on promises by their ids: what may share the machine first, then the tests, then the rest."""
    outcomes = {} if full else run_beside(promises)
    tests = [p for p in promises if p.test]
    if tests:
        outcomes |= run_tests([p.test for p in tests], sum(p.timeout_s for p in tests))
    verdicts: dict[str, Verdict] = {}
    for promise in promises:
        key = promise.test or (full and promise.full) or promise.command
        if key not in outcomes:
            print(f"{promise.id}: {key}", file=sys.stderr, flush=True)
            outcomes[key] = run_command(key, promise.timeout_s)
        verdicts[promise.id] = judge(promise, outcomes[key])
    return verdicts


def not_measured(promise: Promise) -> Verdict:
    shown = {"measured": "only with --full", "bar": promise.bar or "passes", "holds": None, "seconds": 0.0}
    return Verdict(id=promise.id, says=promise.says, **shown)


def show(verdicts: list[Verdict]) -> None:
    words = {True: "[green]holds", False: "[bold red]DOES NOT HOLD", None: "[dim]not measured"}
    table = Table("id", "promise", "measured", "bar", "verdict", "seconds")
    for v in verdicts:
        table.add_row(v.id, escape(v.says), escape(v.measured), escape(v.bar), words[v.holds], f"{v.seconds:.1f}")
    # Where output goes to a file, as in CI, rich assumes 80 columns, which is narrower than the table.
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help="the promises to measure")
    parser.add_argument("--all", action="store_true", help="measure all of them")
    parser.add_argument("--full", action="store_true", help="at full size, where a promise has one")
    parser.add_argument("--junit", type=Path, help="the report of a pytest run to read covered tests from")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--file", type=Path, default=ROOT / "promises.toml", help="default: promises.toml")
    options = parser.parse_args()
    if bool(options.ids) == options.all:
        parser.error("name the promises to measure, or say --all")
    if options.junit and not options.junit.exists():
        parser.error(f"there is no report {options.junit}")
    promises = read_promises(options.file)
    unknown = sorted(set(options.ids) - {p.id for p in promises})
    if unknown:
        parser.error(f"no promise {', '.join(unknown)}; there are: {', '.join(p.id for p in promises)}")
    chosen = [p for p in promises if options.all or p.id in options.ids]
    verdicts = measure(chosen, full=options.full, junit=options.junit)
    if options.json:
        print(json.dumps([dataclasses.asdict(v) for v in verdicts], indent=2, ensure_ascii=False))
    else:
        show(verdicts)
    broken = [v for v in verdicts if v.holds is False]
    for v in broken:  # once more, where one looks last
        print(f"{v.id} does not hold: {v.measured}, wanted {v.bar}", file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
