"""What mcprl promises to keep from one version to the next, as text: its public names with their signatures, and the
options of its commands. `scripts/release freeze` writes both down; tests/unit/house/test_public_api.py compares.

The package's source is read and not imported: that needs no torch, and annotations stay as they were written.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FROZEN = ROOT / "tests/unit/house"
API_FILE = FROZEN / "public_api.txt"
CLI_FILE = FROZEN / "cli_options.txt"
# Every other module may change in any version. What a page of the documentation imports has to be in here.
PUBLIC_MODULES = (
    "mcprl",
    "mcprl.learning.algorithms",
    "mcprl.chat",
    "mcprl.grammar.calls",
    "mcprl.grammar.masks",
    "mcprl.config",
    "mcprl.checks.doctor",
    "mcprl.checks.doctor.checks",
    "mcprl.checks.doctor.examination",
    "mcprl.episodes",
    "mcprl.episodes.rewards",
    "mcprl.errors",
    "mcprl.goals",
    "mcprl.learning",
    "mcprl.cli.doctor",
    "mcprl.cli.try_",
    "mcprl.protocol",
    "mcprl.recipe",
    "mcprl.records",
    "mcprl.samplers",
    "mcprl.samplers.sampler",
    "mcprl.seeds",
    "mcprl_skyrl_gym",
    "mcprl.tasks",
    "mcprl.tools",
    "mcprl.checks.health",
)
# Names of public modules that only other parts of mcprl use; they may change in any version.
INSIDE = {
    "mcprl.checks.doctor.examination": {
        *("Check", "Examination", "MemoryNeeds", "Opened", "checkpoint_bytes", "examine", "gpu_memories", "hub_folder"),
        *("in_words", "memory_needs", "needed_gpus", "passed"),
    },
    "mcprl.cli.doctor": {"command"},
    "mcprl.cli.try_": {"command"},
    "mcprl.config": {"NOT_REPRODUCIBLE"},
    "mcprl.episodes.rewards": {
        *("meets", "numbers_in", "pair_in_any_order", "pair_in_order", "require_judge", "require_scorable"),
        "why_unusable",
    },
    "mcprl.errors": {"did_you_mean"},
    "mcprl.grammar.masks": {"TurnGrammars"},
    "mcprl.protocol": {"retry_after_s"},
    "mcprl.recipe": {"sections", "settings"},
    "mcprl.samplers.sampler": {"AlwaysOpen", "Completion", "SampleRequest", "Sampler"},
    "mcprl.verdicts": {"mean"},
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
# Methods without a public name that callers use all the same.
SPOKEN = {"__init__", "__call__", "__enter__", "__aenter__", "__iter__", "__aiter__", "__len__", "__getitem__"}


def module_path(module: str) -> Path | None:
    """The file of a module of mcprl; None where there is none."""
    for source in (SOURCE, *sorted(ROOT.glob("packages/*/src"))):
        base = source.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


@cache
def module_tree(module: str) -> ast.Module:
    path = module_path(module)
    if path is None:
        raise SystemExit(
            f"no module {module} in src/ or packages/. Fix: correct PUBLIC_MODULES in scripts/public_api.py."
        )
    return ast.parse(path.read_text())


def exported(module: str) -> list[str]:
    """The names in the `__all__` of a module that are for everyone."""
    for node in module_tree(module).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return sorted(set(ast.literal_eval(node.value)) - INSIDE.get(module, set()))
    raise SystemExit(f"{module} is public and has no __all__. Fix: list its names there.")


def defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The top level of a module, and what stands there under an `if`."""
    for node in tree.body:
        if isinstance(node, ast.If):
            yield from [*node.body, *node.orelse]
        else:
            yield node


def find(module: str, name: str) -> tuple[str, Definition] | None:
    """Where a name is defined, following imports inside mcprl; None where it comes from elsewhere."""
    for node in statements(module_tree(module)):
        if isinstance(node, Definition) and name in defined_names(node):
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mcprl"):
            for alias in node.names:
                if (alias.asname or alias.name) == name and module_path(node.module):
                    return find(node.module, alias.name)
    return None


class WithoutProse(ast.NodeTransformer):
    """Drops `description=…` from the fields of settings: better words are no change of the interface."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        return self.generic_visit(node)


def source(node: ast.AST) -> str:
    # A copy, since trees are kept.
    return ast.unparse(WithoutProse().visit(ast.parse(ast.unparse(node)))).replace("\n", " ")


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`async def lease(self, name: str) -> Lease`, after its decorators."""
    decorators = "".join(f"@{source(decorator)} " for decorator in function.decorator_list)
    prefix = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{decorators}{prefix} {function.name}({ast.unparse(function.args)}){returned}"


def is_public(name: str) -> bool:
    return name in SPOKEN or (not name.startswith("_") and name != "model_config")


def members(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Fields and methods of a class by name, those of its bases in mcprl included."""
    found: dict[str, str] = {}
    for base in reversed(node.bases):
        place = find(module, base.id) if isinstance(base, ast.Name) else None
        if place and isinstance(place[1], ast.ClassDef):
            found |= members(place[0], place[1])
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(statement.name):
            found[statement.name] = signature(statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= {name: source(statement) for name in defined_names(statement) if is_public(name)}
    return found


def described(module: str, name: str) -> Iterator[str]:
    """The lines of one public name."""
    place = find(module, name)
    if place is None:
        # Bound by an import from elsewhere, or only when it is asked for: its name is all that is promised.
        yield f"  {name}"
        return
    home, node = place
    if isinstance(node, ast.ClassDef):
        decorators = "".join(f"@{source(decorator)} " for decorator in node.decorator_list)
        bases = ", ".join(source(base) for base in (*node.bases, *node.keywords))
        yield f"  {decorators}class {name}({bases})" if bases else f"  {decorators}class {name}"
        for line in members(home, node).values():
            yield f"    {line}"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"  {signature(node)}"
    elif isinstance(node, ast.AnnAssign):
        yield f"  {name}: {ast.unparse(node.annotation)}"
    elif isinstance(node.value, ast.Subscript | ast.BinOp):
        yield f"  {name} = {source(node.value)}"  # another name of a type
    else:
        yield f"  {name}"


def api_text() -> str:
    lines = ["# The public names of mcprl. Written by scripts/release freeze; do not edit."]
    for module in PUBLIC_MODULES:
        lines += ["", module]
        for name in exported(module):
            lines += described(module, name)
    return "\n".join(lines) + "\n"


def kind_of(annotation: Any) -> str:
    """The type of an option: `Path`, `str | None`, or the words that it takes."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(member.value) for member in annotation)
    return annotation.__name__ if type(annotation) is type else str(annotation).replace("typing.", "")


def option_line(parameter: Any) -> str:
    """`--port int 0..65535, default 0`."""
    both = [parameter.opts, parameter.secondary_opts]
    flags = "/".join("|".join(names) for names in both if names)
    name = parameter.name.upper() if parameter.param_type_name == "argument" else flags
    kind = kind_of(parameter.type_descriptor.annotation)
    bounds = [bound for bound in (parameter.min, parameter.max) if bound is not None]
    limits = f" {parameter.min}..{'' if parameter.max is None else parameter.max}" if bounds else ""
    variable = f", variable {parameter.envvar}" if parameter.envvar else ""
    default = "''" if parameter.default == "" else getattr(parameter.default, "value", parameter.default)
    return f"{name} {kind}{limits}{variable}, {'required' if parameter.required else f'default {default}'}"


def command_lines(command: Any, path: str) -> Iterator[str]:
    yield path
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    yield from (f"  {option_line(parameter)}" for parameter in shown)
    for name in sorted(command.list_commands(None)) if hasattr(command, "list_commands") else ():
        yield from command_lines(command.get_command(None, name), f"{path} {name}")


def cli_text() -> str:
    sys.path.insert(0, str(SOURCE))  # the command of this checkout, wherever the environment has one from
    from typer.main import get_command

    from mcprl.cli import app

    head = "# The commands of mcprl and their options. Written by scripts/release freeze; do not edit."
    return "\n".join([head, *command_lines(get_command(app), "mcprl")]) + "\n"


def texts() -> dict[Path, Callable[[], str]]:
    """Each frozen file, and what makes its text."""
    return {API_FILE: api_text, CLI_FILE: cli_text}
