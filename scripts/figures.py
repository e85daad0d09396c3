"""The figures that were measured at full size: bench/figures.json, and which of them are older than their code.

An entry has the figure of one promise: its name, value and bar, whether the bar was met, the day, the commit (with a +
if files were changed or new), the seconds it took, and `code`, a digest of all that it depends on:

  - the bench script or the test file, with the conftest.py files above the latter,
  - what these import, and what that imports, in bench/, tests/, scripts/, src/ and packages/, also inside of functions,
  - files that these name in a text, as "echo.py" or "mcprl.learning.worker": programs that are started,
  - what the promise names with `code`, and what that imports,
  - the command itself.

A digest depends on the names of the files below the root and on their bytes, and on nothing else.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import operator
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promises import Promise

__all__ = [
    "BAR",
    "Figure",
    "Sources",
    "commit_of",
    "meets",
    "missed",
    "out_of_date",
    "read_figures",
    "today",
    "write_figure",
]

BAR = re.compile(r"(<=|>=|<|>|==)\s*([-+0-9.eE]+)$")
COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq}
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Raise, ast.Assert)  # without a block
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
NAMED_MODULE = re.compile(r"""["'](mcprl(?:_\w+)?(?:\.\w+)+)["':]""")
NAMED_FILE = re.compile(r"""["'/](\w+\.py)["']""")
NOT_CODE = {"__pycache__", "node_modules", "static"}  # the dashboard's static/ is built from its web/


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure.

    Figure(figure="help_ms", value=187.2, bar="<= 300", holds=True, date="2026-08-03", commit="8ade2b3+", seconds=6.1,
           code="0f3a5c77d1e2b498")
    """

    figure: str
    value: float
    bar: str
    holds: bool
    date: str
    commit: str
    seconds: float
    code: str


def meets(value: float, bar: str, *, room: float = 1.0) -> bool:
    """Whether a value is on the right side of a bar such as "<= 300". `room` 2 allows twice as much, or half."""
    sign, bound = BAR.match(bar).groups()
    return COMPARE[sign](value, float(bound) * room if "<" in sign else float(bound) / room)


# --- the file


def figures_file(root: Path) -> Path:
    return root / "bench" / "figures.json"


def read_figures(root: Path) -> dict[str, Figure]:
    """All figures by the ids of their promises; none if there is no file."""
    file = figures_file(root)
    if not file.exists():
        return {}
    try:
        return {name: Figure(**entry) for name, entry in json.loads(file.read_text()).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SystemExit(f"{file}: {error}. Fix: take the version of the last commit.") from error


def write_figure(root: Path, promise_id: str, figure: Figure) -> None:
    """Add a figure, or replace the promise's older one. The file is never there in part."""
    file = figures_file(root)
    figures = read_figures(root) | {promise_id: figure}
    entries = {name: asdict(figures[name]) for name in sorted(figures)}
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".json.new")
    new.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    new.replace(file)


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def commit_of(root: Path) -> str:
    """The short hash of the commit, with a + if the tree differs from it; the figures themselves do not count."""

    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return None if done.returncode else done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if commit is None:
        return "unknown"
    changed = git("status", "--porcelain", "--", ".", f":(exclude){figures_file(root).relative_to(root)}")
    return f"{commit}+" if changed else commit


# --- what is out of date


def out_of_date(promises: Iterable[Promise], figures: Mapping[str, Figure], sources: Sources) -> dict[str, str]:
    """The promises whose figure is missing or older than its code, each with what is wrong."""
    found: dict[str, str] = {}
    for promise in promises:
        if not promise.keeps_figure:
            continue
        figure = figures.get(promise.id)
        if figure is None or figure.figure != promise.figure:
            found[promise.id] = "never measured"
        elif figure.code != sources.digest(promise):
            found[promise.id] = f"measured {figure.date} at {figure.commit}, the code has changed since"
    return found


def missed(promises: Iterable[Promise], figures: Mapping[str, Figure]) -> dict[str, str]:
    """The promises whose figure does not meet the bar that they have now, each with both."""
    found: dict[str, str] = {}
    for promise in promises:
        figure = figures.get(promise.id)
        if not promise.keeps_figure or figure is None or figure.figure != promise.figure:
            continue
        # A changed bar needs no new measurement. A command that failed does, whatever its figure.
        failed = meets(figure.value, figure.bar) and not figure.holds
        if failed or not meets(figure.value, promise.bar):
            found[promise.id] = f"{figure.figure} was {figure.value:.4g}, its bar is {promise.bar}" + (
                ", and the command failed" if failed else ""
            )
    return found


# --- digests


class Sources:
    """The Python files below a root: what each depends on, read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lines: dict[Path, str] = {}
        self._needed: dict[Path, frozenset[Path]] = {}
        self._files: dict[Path, list[Path]] = {}
        self._found: dict[tuple[str, Path], list[Path]] = {}

    def digest(self, promise: Promise) -> str:
        """16 hexadecimal digits for the code that the figure of a promise depends on."""
        hashed = hashlib.sha256(f"{promise.full_run}\n".encode())
        for line in sorted(map(self._line, self.files(promise))):
            hashed.update(line.encode())
        return hashed.hexdigest()[:16]

    def files(self, promise: Promise) -> set[Path]:
        """All files that a promise depends on."""
        found = {*self._starts(promise), *self._named(promise)}
        waiting = [path for path in found if path.suffix == ".py"]
        with _no_collections():
            while waiting:
                new = self._needs(waiting.pop()) - found
                found |= new
                waiting.extend(new)
        return found

    def _starts(self, promise: Promise) -> Iterator[Path]:
        """What the command or the test names itself."""
        if promise.test is None:
            words = [self.root / word for word in shlex.split(promise.full_run) if word.endswith(".py")]
            yield from (word for word in words if word.is_file())
            return
        path = self.root / promise.test.partition("::")[0]
        yield from path.rglob("*.py") if path.is_dir() else [path]
        above = [folder / "conftest.py" for folder in [path, *path.parents] if folder.is_relative_to(self.root)]
        yield from (file for file in above if file.is_file())

    def _named(self, promise: Promise) -> Iterator[Path]:
        """The files that the entries of `code` mean: paths, folders or globs."""
        for pattern in promise.code:
            paths = list(self.root.glob(pattern))
            for path in paths:
                files = path.rglob("*") if path.is_dir() else [path]
                yield from (f for f in files if f.is_file() and not NOT_CODE & set(f.relative_to(self.root).parts))
            if not paths:
                raise SystemExit(f"promise {promise.id}: `code` names {pattern}, and there is no such file.")

    def _needs(self, file: Path) -> frozenset[Path]:
        """The files that a file imports or names."""
        if file not in self._needed:
            text = file.read_text()
            package = file.parents[file.name == "__init__.py"]
            found = {package / "__init__.py"} if (package / "__init__.py").is_file() else set[Path]()
            for base, name in imported(ast.parse(text).body, file):
                found.update(self._modules(name, file, base))
            for name in NAMED_MODULE.findall(text):
                found.update(self._modules(name, file))
            for name in NAMED_FILE.findall(text):
                found.update(self._programs(name, file))
            self._needed[file] = frozenset(found)
        return self._needed[file]

    def _modules(self, name: str, file: Path, base: Path | None = None) -> list[Path]:
        """The files that importing a dotted name runs: the module, and the __init__ of each package on the way."""
        first, *rest = name.split(".")
        found: list[Path] = []
        for folder in [base] if base else self._folders(first, file.parent):
            path = folder / first
            found += self._module_files(path)
            for part in rest:
                path /= part
                found += self._module_files(path)
        return found

    def _module_files(self, path: Path) -> list[Path]:
        if path not in self._files:
            self._files[path] = [f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()]
        return self._files[path]

    def _folders(self, first: str, beside: Path) -> list[Path]:
        """Where a name is looked up: as at run time, but with all folders of tests on the path."""
        if first == "mcprl":
            return [self.root / "src"]
        if first.startswith("mcprl_"):
            return [path.parent for path in self.root.glob(f"packages/*/src/{first}")]
        if first in sys.stdlib_module_names:
            return []
        if (first, beside) not in self._found:
            bases = (beside, self.root / "bench", self.root / "scripts")
            here = [base for base in bases if (base / f"{first}.py").is_file() or (base / first).is_dir()]
            self._found[first, beside] = here[:1] or [path.parent for path in self._helpers.get(f"{first}.py", [])]
        return self._found[first, beside]

    def _programs(self, name: str, file: Path) -> list[Path]:
        """The files that a name such as "echo.py" in a text may mean."""
        beside = file.with_name(name)
        if beside.is_file():
            return [beside]
        is_in_package = any(file.is_relative_to(self.root / folder) for folder in ("src", "packages"))
        return [] if is_in_package else self._helpers.get(name, [])

    @cached_property
    def _helpers(self) -> dict[str, list[Path]]:
        """The files of bench/ and tests/ by their last names."""
        found: dict[str, list[Path]] = {}
        for folder in ("bench", "tests"):
            for path in (self.root / folder).rglob("*.py"):
                found.setdefault(path.name, []).append(path)
        return found

    def _line(self, file: Path) -> str:
        """What a digest holds of a file: its name and a digest of its bytes."""
        if file not in self._lines:
            name = file.relative_to(self.root).as_posix()
            self._lines[file] = f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n"
        return self._lines[file]


def imported(body: list[ast.stmt], file: Path) -> Iterator[tuple[Path | None, str]]:
    """Dotted names that statements import, also inside of functions, and the folder that a relative one begins in.

    `from mcprl.tools import pool` is mcprl.tools.pool: if `pool` is not a module, mcprl.tools is found on the way.
    """
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((None, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else None
            prefix = f"{node.module}." if node.module else ""
            yield from ((base, prefix + alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            waiting += node.orelse
        elif not isinstance(node, SIMPLE):
            for block in BLOCKS:
                waiting += getattr(node, block, ())


def _is_for_type_checkers(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


@contextmanager
def _no_collections() -> Iterator[None]:
    """Parsing makes many objects and no cycles: looking for cycles meanwhile would take longer than parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
