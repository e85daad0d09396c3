"""Which small faults in the core no test notices, of those tests that start no process, and which tests notice them.

    python bench/mutants.py FOLDER contexts [TEST …]   run the tests once: which lines each runs, and how long it takes
    python bench/mutants.py FOLDER run SEED COUNT [--parts PART …] [--tests N] [--seconds S] [--failures F]
    python bench/mutants.py FOLDER report

A mutant is one change in the body of one function. Docstrings, annotations, defaults, messages, logging and assertions
are not changed. `run` draws COUNT mutants on covered lines, evenly over the parts of the core, collects the tests once
and forks for each mutant. The child exchanges the code of the function and runs tests that cover the line, those that
run the fewest other lines first, until N tests, S seconds of processor time or F failures.

What they found is in bench/results/mutants.jsonl, and `run` continues from there: it gives the survivors the tests that
they have not met, and plays a mutant again if all tests that killed it are gone. A survivor that changes nothing that
matters has a row there with the verdict `equivalent` and why. FOLDER keeps what `contexts` found.

  killed, timeout, survived   of the mutants on lines that a test covers; a timeout counts as killed in `share`
  uncovered                   mutants that were drawn besides, on lines that no such test covers
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest
from hypothesis import Phase, settings

from servers.harness import say

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/mcprl"
RESULTS = ROOT / "bench/results/mutants.jsonl"
CORE = ("records.py", "tools", "chat", "grammar", "episodes", "learning", "runs")
QUICK = "not process and not slow and not full and not alone"
PYTEST = ("-q", "-p", "no:cacheprovider", "--hypothesis-profile=gate", "-m", QUICK)
TIMEOUT_S = 5.0

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGERS = {"log", "_log", "logger", "_logger", "logging", "warnings"}


@dataclass(frozen=True)
class Site:
    """A place in a function, and what changes it in the tree that it was found in."""

    function: str
    first_line: int
    line: int
    statement_line: int
    operator: str
    apply: Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """Site 12 of a file, and the tests that cover its line, those that run the fewest lines first.

    Mutant("tools/breaker.py", 12, "tools/breaker.py Breaker.admit: Lt to LtE: if now < self._until:", ["tests/…"])
    """

    file: str
    number: int
    name: str
    tests: list[str]


def core_files() -> list[Path]:
    places = [PACKAGE / name for name in CORE]
    return sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))


def part_of(file: str) -> str:
    return file.split("/")[0]


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# --- the sites of a file ---


def sites(tree: ast.Module) -> Iterator[Site]:
    """All sites of a file, in one order."""
    for name, function in _functions(tree, ""):
        first = min(node.lineno for node in (function, *function.decorator_list))
        for statement, operator, apply, line in _changes(function, function.body[0]):
            yield Site(name, first, line, statement.lineno, operator, apply)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name not in {"__repr__", "__str__"}:
                yield prefix + child.name, child
        elif isinstance(child, ast.If | ast.Try):
            yield from _functions(child, prefix)


Change = tuple[ast.stmt, str, Callable[[], None], int]


def _changes(parent: ast.AST, statement: ast.stmt) -> Iterator[Change]:
    """What can be changed below a node; `statement` is the innermost around it."""
    for field, value in ast.iter_fields(parent):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(parent, ast.Call):
            continue
        for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_skipped(node):
                continue
            around = node if isinstance(node, ast.stmt) else statement
            line = getattr(node, "lineno", getattr(parent, "lineno", around.lineno))
            for operator, new in _replacements(parent, field, node):

                def apply(place: int | None = place, field: str = field, new: ast.AST = new) -> None:
                    if place is None:
                        setattr(parent, field, new)
                    else:
                        getattr(parent, field)[place] = new

                yield around, operator, apply, line
            if not isinstance(node, ast.Raise):
                yield from _changes(node, around)


def _is_skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        called = node.value.func if isinstance(node.value, ast.Call) else None
        owner = called.value if isinstance(called, ast.Attribute) else called
        return isinstance(node.value, ast.Constant) or (isinstance(owner, ast.Name) and owner.id in LOGGERS)
    return isinstance(node, ast.Assert | ast.JoinedStr)


def _replacements(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if field in {"test", "ifs"}:
        for value in (False,) if isinstance(parent, ast.While) else (True, False):
            yield f"condition to {value}", ast.Constant(value)
    swap = SWAPS.get(type(node))
    of_text = isinstance(parent, ast.BinOp) and (_is_text(parent.left) or _is_text(parent.right))
    if swap is not None and not of_text:
        yield f"{type(node).__name__} to {swap.__name__}", swap()
    yield from _other_values(field, node)


def _other_values(field: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Constant(value=bool() as value):
            yield f"{value} to {not value}", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield f"{value} to {value + 1}", ast.Constant(value + 1)
            yield f"{value} to {value - 1}", ast.Constant(value - 1)
        case ast.Constant(value=str() as value) if field in {"slice", "keys"}:
            yield f"key {value!r}", ast.Constant(value + "?")
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"no {type(node.op).__name__}", operand
        case ast.Name(id=name) if field == "func" and name in BUILTINS:
            yield f"{name} to {BUILTINS[name]}", ast.Name(BUILTINS[name], ast.Load())
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None", ast.Return(ast.Constant(None))
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            yield f"no {type(node).__name__}", ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "no call", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "no assignment", ast.Pass()
        case _:
            pass


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def changed_code(mutant: Mutant) -> tuple[tuple[str, str, int], CodeType]:
    """The code of the changed function, and the key of the function that it is for."""
    tree = ast.parse((PACKAGE / mutant.file).read_text())
    site = next(itertools.islice(sites(tree), mutant.number, None))
    site.apply()
    file = str(PACKAGE / mutant.file)
    found = [compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)]
    for code in found:
        if (code.co_qualname, code.co_firstlineno) == (site.function, site.first_line):
            return (file, site.function, site.first_line), code
        found += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    raise LookupError(f"{mutant.name}: no code of {site.function}")


# --- which tests run which lines ---


class Tracer:
    """Writes down each test that passes: its seconds of processor time, and the lines of the core that it runs."""

    def __init__(self, store: Path, cases: int) -> None:
        self.cases = cases
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=[str(f) for f in core_files()])
        self.done = {row["test"] for row in read_rows(store)}
        self.store = store.open("a")
        self.failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """No test is imported yet. Further examples of a property seldom run further lines, and tracing is slow."""
        settings.register_profile("traced", settings.get_profile("gate"), max_examples=5)
        settings.load_profile("traced")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        functions: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            functions[function_of(item.nodeid)].append(item)
        first = [item for cases in functions.values() for item in cases[: self.cases]]
        items[:] = [item for item in first if item.nodeid not in self.done]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.start()
        self.coverage.switch_context(item.nodeid)
        started = time.process_time()
        try:
            return (yield)
        finally:
            seconds = time.process_time() - started
            self.coverage.stop()
            data = self.coverage.get_data()
            data.set_query_context(item.nodeid)
            found = ((relative(Path(file)), sorted(data.lines(file) or ())) for file in data.measured_files())
            lines = {file: own for file, own in found if own}
            if item.nodeid not in self.failed:
                row = {"test": item.nodeid, "s": round(seconds, 4), "lines": lines}
                self.store.write(json.dumps(row) + "\n")
                self.store.flush()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def contexts(folder: Path, tests: list[str], cases: int) -> None:
    pytest.main([*PYTEST, f"--basetemp={folder}/tmp", *tests], plugins=[Tracer(folder / "contexts.jsonl", cases)])


def covering(folder: Path) -> tuple[dict[tuple[str, int], list[str]], dict[str, float]]:
    """The tests by file and line, those that run the fewest lines first, and their seconds."""
    lines: dict[tuple[str, int], list[str]] = defaultdict(list)
    rows = sorted(read_rows(folder / "contexts.jsonl"), key=lambda row: sum(map(len, row["lines"].values())))
    for row in rows:
        for file, own in row["lines"].items():
            for line in own:
                lines[file, line].append(row["test"])
    return lines, {row["test"]: row["s"] for row in rows}


def draw(lines: dict[tuple[str, int], list[str]], seed: int, count: int) -> list[Mutant]:
    """Mutants of all parts in turns. Their order is by name, so a change of the core hardly changes which are drawn."""
    parts: dict[str, list[Mutant]] = defaultdict(list)
    for file in map(relative, core_files()):
        text, names = (PACKAGE / file).read_text(), Counter[str]()
        rows = text.splitlines()
        for number, site in enumerate(sites(ast.parse(text))):
            tests = lines.get((file, site.line)) or lines.get((file, site.statement_line)) or []
            name = f"{file} {site.function}: {site.operator}: {rows[site.line - 1].strip()}"
            names[name] += 1
            mutant = Mutant(file, number, name + (f" #{names[name]}" if names[name] > 1 else ""), tests)
            parts[part_of(file)].append(mutant)
    chosen: list[list[Mutant]] = []
    for part, mutants in parts.items():
        mutants.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
        covered = list(itertools.accumulate(bool(mutant.tests) for mutant in mutants))
        wanted = min(-(-count // len(CORE)), covered[-1])
        chosen.append(mutants[: covered.index(wanted) + 1])
        say(f"{part}: {len(chosen[-1])} of {len(mutants)} mutants, {covered[-1]} on covered lines")
    return [mutant for row in itertools.zip_longest(*chosen) for mutant in row if mutant is not None]


# --- the mutants against the tests ---


def read_results() -> dict[str, dict[str, Any]]:
    """The last of each mutant."""
    return {row["mutant"]: row for row in read_rows(RESULTS) if "mutant" in row}


def function_of(test: str) -> str:
    return test.partition("[")[0]


def digest(test: str) -> str:
    return hashlib.sha256(test.encode()).hexdigest()[:8]


Functions = dict[tuple[str, str, int], list[FunctionType]]


def functions_of_the_core() -> Functions:
    """All functions of the core that are alive, by file, name and line."""
    files = {str(file) for file in core_files()}
    for file in core_files():
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        importlib.import_module(name.removesuffix(".__init__"))
    functions: Functions = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and (code := one.__code__).co_filename in files:
            functions[code.co_filename, code.co_qualname, code.co_firstlineno].append(one)
    return functions


@dataclass(eq=False)
class Runner:
    """Takes the place of pytest's loop over the tests that it collected."""

    mutants: list[Mutant]
    times: dict[str, float]
    tests: int
    seconds: float
    failures: int

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """No test is imported yet. What a failing example shrinks to is of no interest here."""
        settings.register_profile("mutants", settings.get_profile("gate"), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions, results, untraced = functions_of_the_core(), read_results(), self.untraced_cases(items)
        gc.freeze()  # what a collector visits in a child would be copied
        with RESULTS.open("a") as store:
            for count, mutant in enumerate(self.mutants, 1):
                earlier = results.get(mutant.name, {"verdict": "new", "killers": [], "ran": []})
                tests = [test for test in mutant.tests if test in items]
                tests += [case for name in dict.fromkeys(map(function_of, tests)) for case in untraced[name]]
                tests = self.next_tests(tests, earlier["ran"])
                is_settled = earlier["verdict"] == "equivalent" or any(test in items for test in earlier["killers"])
                if is_settled or not tests:
                    continue
                row = self.try_mutant(mutant, [items[test] for test in tests], functions)
                row |= {"ran": [] if row["killers"] else earlier["ran"] + [digest(test) for test in row["ran"]]}
                store.write(json.dumps({"mutant": mutant.name, **row, "of": len(mutant.tests)}) + "\n")
                store.flush()
                say(f"{count}/{len(self.mutants)} {row['verdict']} in {row['s']} s: {mutant.name}")
        return True

    def untraced_cases(self, items: Iterable[str]) -> dict[str, list[str]]:
        """By function, the cases that `contexts` left out. They take about as long as the others."""
        traced, cases = {function_of(test): s for test, s in self.times.items()}, defaultdict[str, list[str]](list)
        for test in items:
            if test not in self.times:
                cases[function_of(test)].append(test)
                self.times[test] = traced.get(function_of(test), 0.1)
        return cases

    def next_tests(self, tests: list[str], ran: list[str]) -> list[str]:
        left = [test for test in tests if digest(test) not in ran][: self.tests]
        seconds = itertools.accumulate(self.times[test] for test in left)
        return left[: max(1, sum(s < self.seconds for s in seconds))]

    def try_mutant(self, mutant: Mutant, items: list[pytest.Item], functions: Functions) -> dict[str, Any]:
        key, code = changed_code(mutant)
        own, started = functions[key], time.monotonic()
        if not own or any(function.__code__.co_freevars != code.co_freevars for function in own):
            return {"verdict": "invalid", "killers": [], "ran": [], "s": 0}
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for function in own:
                    function.__code__ = code
                self.play(items, writable)
            finally:
                os._exit(1)
        os.close(writable)
        ended, text = follow(child, readable, TIMEOUT_S + 5 * sum(self.times[item.nodeid] for item in items))
        lines = [line.split(" ", 1) for line in text.splitlines()]
        ran = [test for kind, test in lines if kind == "start"]
        killers = list(dict.fromkeys(test for kind, test in lines if kind == "failed"))
        survived = text.endswith("end of all\n")
        verdict = "killed" if killers else "survived" if survived else "broken" if ended else "timeout"
        if verdict == "timeout":
            killers = ran[-1:]
        return {"verdict": verdict, "killers": killers, "ran": ran, "s": round(time.monotonic() - started, 1)}

    def play(self, items: list[pytest.Item], writable: int) -> None:
        """In the child: run the tests, and end."""
        plugins = items[0].config.pluginmanager
        plugins.get_plugin(str(ROOT / "tests/conftest.py"))._started.clear()  # the fork itself
        plugins.register(Failures(writable, self.failures))
        for item, following in itertools.zip_longest(items, items[1:]):
            os.write(writable, f"start {item.nodeid}\n".encode())
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        os.write(writable, b"end of all\n")


@dataclass(eq=False)
class Failures:
    """In the child: tells the parent which tests fail."""

    writable: int
    left: int

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.writable, f"failed {report.nodeid}\n".encode())
            self.left -= 1
            if not self.left:
                os._exit(0)


def follow(child: int, readable: int, limit: float) -> tuple[bool, str]:
    """Whether a child ended within `limit` seconds, without those of waiting for a processor, and what it wrote."""
    started, text, ended = time.monotonic(), b"", False
    while not ended:
        waited = int(Path(f"/proc/{child}/schedstat").read_text().split()[1]) / 1e9
        if time.monotonic() - started - waited > limit:
            os.kill(child, signal.SIGKILL)
            break
        if select.select([readable], [], [], 1)[0]:
            part = os.read(readable, 1 << 16)
            text, ended = text + part, not part
    os.close(readable)
    os.waitpid(child, 0)
    return ended, text.decode()


def run(folder: Path, seed: int, count: int, parts: list[str], limits: dict[str, Any]) -> None:
    lines, times = covering(folder)
    mutants = [mutant for mutant in draw(lines, seed, count) if part_of(mutant.file) in parts]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = read_results()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as store:
        rows = [{"commit": commit.strip(), "seed": seed, "count": count, "parts": parts, **limits}]
        rows += [
            {"mutant": m.name, "verdict": "uncovered", "killers": [], "ran": []}
            for m in mutants
            if not m.tests and m.name not in known
        ]
        store.write("".join(json.dumps(row) + "\n" for row in rows))
    covered = [mutant for mutant in mutants if mutant.tests]
    files = {test.partition("::")[0] for mutant in covered for test in mutant.tests}
    # What is told of a failure is not read, and takes longer than most tests.
    quiet = ("--tb=native", "--assert=plain", f"--basetemp={folder}/tmp")
    pytest.main([*PYTEST, *quiet, *sorted(filter(os.path.exists, files))], plugins=[Runner(covered, times, **limits)])


def report(folder: Path) -> None:
    results, seconds = read_results(), covering(folder)[1]
    tally: dict[str, Counter[str]] = defaultdict(Counter)
    for name, row in results.items():
        tally[name.split("/")[0].split(" ")[0]][row["verdict"]] += 1
        if row["verdict"] == "survived":
            say(f"survived {len(row['ran'])} of {row['of']} tests: {name}")
    killers = [row["killers"] for row in results.values() if row["killers"]]
    kills, alone = Counter(itertools.chain(*killers)), Counter(own[0] for own in killers if len(own) == 1)
    files: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        files[test.partition("::")[0]].append(test)
    for file, tests in files.items():
        took, killed, only = (sum(of[test] for test in tests) for of in (seconds, kills, alone))
        say(f"{file}: {len(tests)} tests, {took:.1f} s, {killed} kills, {only} alone")
    total = sum(tally.values(), Counter[str]())
    noticed = total["killed"] + total["timeout"]
    print(json.dumps({"share": round(noticed / (noticed + total["survived"]), 3), **total, "parts": tally}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    steps = parser.add_subparsers(dest="step", required=True)
    traced = steps.add_parser("contexts")
    traced.add_argument("tests", nargs="*", default=["tests"])
    traced.add_argument("--cases", type=int, default=4)
    ran = steps.add_parser("run")
    ran.add_argument("seed", type=int)
    ran.add_argument("count", type=int)
    ran.add_argument("--parts", nargs="+", choices=CORE, default=CORE)
    ran.add_argument("--tests", type=int, default=60)
    ran.add_argument("--seconds", type=float, default=10.0)
    ran.add_argument("--failures", type=int, default=2)
    steps.add_parser("report")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    match given.step:
        case "contexts":
            contexts(given.folder, given.tests, given.cases)
        case "run":
            limits = {name: getattr(given, name) for name in ("tests", "seconds", "failures")}
            run(given.folder, given.seed, given.count, list(given.parts), limits)
        case _:
            report(given.folder)


if __name__ == "__main__":
    main()
