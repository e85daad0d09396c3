"""Files and functions stay small, names say something, and no fault is swallowed."""

from __future__ import annotations

import ast

from source_files import source_files

# The core through this round of work; with the packages.
MAX_CORE_LINES = 46_000
MAX_LINES = 60_000
MAX_FUNCTION_LINES = 60
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}
BROAD = {"Exception", "BaseException"}


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return (first.end_lineno or first.lineno) - first.lineno + 1 if is_docstring else 0


def test_the_core_and_its_packages_stay_small(record_property):
    lines = {file.name: len(file.text.splitlines()) for file in source_files()}
    core = sum(count for name, count in lines.items() if not name.startswith("mcprl_"))
    record_property("core_lines", core)
    record_property("core_files", sum(not name.startswith("mcprl_") for name in lines))
    record_property("all_lines", sum(lines.values()))
    assert core <= MAX_CORE_LINES
    assert sum(lines.values()) <= MAX_LINES


def test_no_function_is_longer_than_60_lines(record_property):
    lines = {
        f"{file.name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1 - docstring_lines(node)
        for file in source_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    record_property("longest_function_lines", max(lines.values()))
    assert {name: count for name, count in lines.items() if count > MAX_FUNCTION_LINES} == {}


def test_no_module_has_a_name_that_says_nothing():
    words = {file.name: set(file.name.removesuffix(".py").split("/")) for file in source_files()}
    assert [name for name, parts in words.items() if parts & EMPTY_NAMES] == []


def is_broad(expression: ast.expr | None) -> bool:
    if expression is None:
        return True
    members = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    return any(isinstance(member, ast.Name) and member.id in BROAD for member in members)


def swallows(node: ast.AST) -> bool:
    """Whether a node catches everything and goes on. A handler that ends by raising again only cleans up."""
    if isinstance(node, ast.ExceptHandler):
        last = node.body[-1]
        return is_broad(node.type) and not (isinstance(last, ast.Raise) and last.exc is None)
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "suppress":
        return any(is_broad(argument) for argument in node.args)
    return False


def test_no_handler_swallows_every_exception():
    found = [
        f"src/mcprl/{file.name}:{node.lineno}"
        for file in source_files()
        for node in ast.walk(file.tree)
        if swallows(node)
    ]
    assert found == []


def exported_names(tree: ast.Module) -> set[str]:
    """The public names that the top level of a module binds, other than whole modules."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_every_package_that_exports_names_lists_them():
    faces = [file for file in source_files() if file.name.endswith("__init__.py")]
    assert faces != []
    assert [f.name for f in faces if exported_names(f.tree) and "__all__" not in f.text] == []


def test_every_package_and_module_says_what_it_is_for():
    silent = [file.name for file in source_files() if file.text.strip() and ast.get_docstring(file.tree) is None]
    assert silent == []
