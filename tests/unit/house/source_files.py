"""The package's source, parsed once: what the tests of the house look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "mcprl"
# Packages of the workspace; a file of theirs is named mcprl_market/fmp.py.
PACKAGES = tuple(sorted(ROOT.glob("packages/*/src/mcprl_*")))


@dataclass(frozen=True)
class SourceFile:
    """One file of the package. `name` is its path inside the package: `tools/pool.py`."""

    name: str
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The folder or top-level module that the file belongs to: `tools`, `records`."""
        return self.name.split("/")[0].removesuffix(".py")


@cache
def source_files() -> tuple[SourceFile, ...]:
    roots = [(PACKAGE, PACKAGE), *((package, package.parent) for package in PACKAGES)]
    files = [(path, str(path.relative_to(base))) for folder, base in roots for path in sorted(folder.rglob("*.py"))]
    return tuple(SourceFile(name, path.read_text(), ast.parse(path.read_text())) for path, name in files)


def imported_modules(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, also inside functions and under TYPE_CHECKING.

    `from mcprl.tools import pool` counts as `mcprl.tools.pool`: where `pool` is no module, its prefix still tells.
    """
    folders = file.name.split("/")[:-1]
    package = folders if file.part.startswith("mcprl_") else ["mcprl", *folders]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}"
        elif isinstance(node, ast.Call) and (module := dynamically_imported(node)):
            yield node.lineno, module


def dynamically_imported(call: ast.Call) -> str | None:
    """The module that `import_module("…")` names, where the call is one."""
    if not ast.unparse(call.func).endswith("import_module") or not call.args:
        return None
    name = call.args[0]
    return str(name.value) if isinstance(name, ast.Constant) else None
