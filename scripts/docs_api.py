"""docs/api.md: the public names of mcprl with their signatures and docstrings.

The source is read and never imported, so this needs neither torch nor any other extra, and takes no time.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from public_api import Definition, defined_names, exported, find, module_tree

LONGEST_SIGNATURE = 100
MODULE = "mcprl"
EXAMPLE = re.compile(r"(async )?with .*:$|(await )?[\w.]+\((.*[)…,({])?$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- reading the source


def definition(module: str, name: str) -> tuple[Definition, str | None]:
    """What a name is, wherever the module has it from, and its docstring."""
    found = find(module, name)
    if found is None:
        raise SystemExit(f"{module} exports {name} and does not have it. Fix: correct its __all__.")
    home, node = found
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node, ast.get_docstring(node)
    body = module_tree(home).body
    return node, text_of(body[body.index(node) + 1]) if node in body[:-1] else None


def text_of(node: ast.stmt) -> str | None:
    """The text of a docstring behind an assignment."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return textwrap.dedent(node.value.value).strip()
    return None


# --- signatures


def function_signature(node: Function, *, name: str | None = None, is_method: bool = False) -> str:
    """`name(parameters) -> type`, on several lines where it is long. A method's `self` is left out."""
    parameters = parameter_texts(node.args)
    if is_method and parameters and parameters[0].split(":")[0] in ("self", "cls"):
        parameters = [one for one in parameters[1:] if one != "/"]
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    if is_context(node):
        prefix = f"{prefix}with "
    result = f" -> {ast.unparse(node.returns)}" if node.returns and name is None else ""
    head = f"{prefix}{name or node.name}"
    line = f"{head}({', '.join(parameters)}){result}"
    if len(line) <= LONGEST_SIGNATURE or not parameters:
        return line
    return f"{head}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"


def is_context(node: Function) -> bool:
    """Whether a function is entered, not awaited."""
    return any(ast.unparse(mark).endswith("contextmanager") for mark in node.decorator_list)


def parameter_texts(arguments: ast.arguments) -> list[str]:
    def text(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
        space = " " if kind else ""
        value = ast.unparse(default) if default else ""
        shown = "…" if value.startswith("_") else value  # a private constant tells a reader nothing
        return f"{stars}{argument.arg}{kind}" + (f"{space}={space}{shown}" if shown else "")

    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [text(argument, default) for argument, default in zip(plain, defaults, strict=True)]
    if arguments.posonlyargs:
        found.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        found.append(text(arguments.vararg, None, "*"))
    elif arguments.kwonlyargs:
        found.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [text(argument, default) for argument, default in pairs]
    if arguments.kwarg:
        found.append(text(arguments.kwarg, None, "**"))
    return found


def class_signature(node: ast.ClassDef) -> str:
    """The class with its bases, and what it is made with: its `__init__`, or its fields."""
    bases = [ast.unparse(base) for base in node.bases]
    head = f"class {node.name}" + (f"({', '.join(bases)})" if bases else "")
    made = next((one for one in methods(node, hidden=True) if one.name == "__init__"), None)
    if made is not None:
        return f"{head}\n{function_signature(made, name=node.name, is_method=True)}"
    return "\n".join([head, *(f"    {field_text(field)}" for field in node.body if is_field(field))])


def field_text(node: ast.stmt) -> str:
    """A field as it is written, but of pydantic's and dataclasses' descriptions only the default."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
        options = {option.arg: option.value for option in node.value.keywords}
        if ast.unparse(node.value.func) in ("Field", "field"):
            default = ast.unparse(options["default"]) if "default" in options else "…" * ("default_factory" in options)
            return ast.unparse(node).split(" = ")[0] + (f" = {default}" if default else "")
    return ast.unparse(node)


def is_field(node: ast.stmt) -> bool:
    """Whether a statement of a class declares what its instances hold, or is a member of an enumeration."""
    return any(not name.startswith("_") and name != "model_config" for name in defined_names(node)) and not isinstance(
        node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    )


def methods(node: ast.ClassDef, *, hidden: bool = False) -> Iterator[Function]:
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and (hidden or not one.name.startswith("_")):
            yield one


def signature(node: Definition) -> str:
    match node:
        case ast.ClassDef():
            return class_signature(node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return function_signature(node)
        case _:
            written = ast.unparse(node)
            return written if len(written) <= LONGEST_SIGNATURE else f"{written[: LONGEST_SIGNATURE - 1].rstrip()}…"


# --- as Markdown


def prose(text: str) -> str:
    """A paragraph, with what Markdown or HTML would take for a mark escaped; `code` stays as it is."""
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([\\*_|\[\]])", r"\\\1", pieces[i]).replace("<", "&lt;")
    return "`".join(pieces)


def is_code(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is an example, a formula or a small table, whose lines stay as they are."""
    lines = paragraph.splitlines()
    return (
        all(line.startswith(" ") for line in lines)
        or lines[0].startswith((">>>", "{"))
        or ("`" not in paragraph and EXAMPLE.match(lines[0]) is not None)
        or any(re.search(r"\S {2,}\S", line) for line in lines)
    )


def docstring(text: str) -> str:
    """A docstring as Markdown: its paragraphs, and its examples as blocks."""
    made: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        if is_code(paragraph):
            made.append(textwrap.indent(textwrap.dedent(paragraph), "    "))
        elif paragraph.startswith(("- ", "* ")):
            made.append("\n".join(line[:2] + prose(line[2:]) for line in paragraph.splitlines()))
        else:
            made.append(prose(" ".join(paragraph.split())))
    return "\n\n".join(made)


def first_line(text: str) -> str:
    """The first sentence or so: a docstring's first line says what a thing is."""
    return prose(" ".join(re.split(r"\n\s*\n", text)[0].split()))


def method_lines(node: ast.ClassDef) -> str:
    """A line for each public method and property."""
    lines: list[str] = []
    for method in methods(node):
        marks = {ast.unparse(mark).split(".")[-1] for mark in method.decorator_list}
        if {"setter", "overload"} & marks or any("validator" in ast.unparse(m) for m in method.decorator_list):
            continue
        if {"property", "cached_property"} & marks:
            shown = method.name + (f": {ast.unparse(method.returns)}" if method.returns else "")
        else:
            shown = " ".join(function_signature(method, is_method="staticmethod" not in marks).split())
            shown = shown.replace("( ", "(").replace(", )", ")")
        says = ast.get_docstring(method)
        lines.append(f"- `{shown}`" + (f": {first_line(says)}" if says else ""))
    return "\n".join(lines)


def anchor(module: str, name: str) -> str:
    """The whole name; without underscores around it, which Markdown would take for marks."""
    return f"{module}.{name.strip('_')}"


def entry(module: str, name: str) -> str:
    """One public name under an anchor of its own."""
    node, says = definition(module, name)
    text = f"\n### `{name}` {{ #{anchor(module, name)} }}\n\n{textwrap.indent(signature(node), '    ')}\n"
    if says:
        text += f"\n{docstring(says)}\n"
    if isinstance(node, ast.ClassDef) and (own := method_lines(node)):
        text += f"\n{own}\n"
    return text


def api_page(head: str) -> str:
    """What `import mcprl` offers. `head` says where the page comes from."""
    names = exported(MODULE)
    return (
        f"{head}# Python API\n\nThe names of `mcprl`, all imported with the base install, without torch. They and those"
        " of the modules in `tests/unit/house/public_api.txt` are frozen: a test fails if a name or signature changes"
        " by accident. All others may change with any version. `…` stands for more of a value.\n\n"
        f"{docstring(ast.get_docstring(module_tree(MODULE)) or '')}\n" + "".join(entry(MODULE, name) for name in names)
    )
