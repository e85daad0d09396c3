"""Which code gives the same result in Monty as in Python, decided by its text alone.

The list is of what has been compared, and errs on the side of no. Left out for what differs in Monty 1.4: `round` to a
number of digits (2.675 becomes 2.68 there), floats written as they come (of two shortest texts of one float,
…397.2 and …397.3, it may take the other), the functions of `math` that are no exact operations, the order of sets,
`sum` where Python adds floats with compensation (from 3.12 on), and everything that could notice a missing feature and
go another way: `try`, `hasattr`, classes.
"""

from __future__ import annotations

import ast
import re
import sys

__all__ = ["is_same_in_monty"]

_NODES = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Pass),
    *(ast.FunctionDef, ast.Return, ast.Lambda, ast.arguments, ast.arg, ast.Import, ast.alias),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.keyword, ast.Attribute, ast.Name),
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.List, ast.Tuple, ast.Dict, ast.Subscript, ast.Slice),
    *(ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Starred),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_BUILTINS = frozenset(
    (
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "isinstance", "len"),
        *("list", "map", "max", "min", "print", "range", "reversed", "round", "sorted", "sum", "tuple", "zip"),
    )
)
_METHODS = frozenset(
    (
        *("append", "count", "endswith", "extend", "find", "get", "index", "insert", "items", "join", "keys", "lower"),
        *("lstrip", "pop", "replace", "rstrip", "sort", "split", "splitlines", "startswith", "strip", "title", "upper"),
        "values",
    )
)
_EXACT_MATHS = frozenset(("ceil", "e", "fabs", "floor", "gcd", "isfinite", "isinf", "isnan", "pi", "sqrt", "trunc"))
_FORMAT = re.compile(r"[<>^]?\+?\d{0,3},?(\.\d{1,2})?[fdegsx%]")
_PYTHON_SUMS_LIKE_MONTY = sys.version_info < (3, 12)


def is_same_in_monty(code: str) -> bool:
    """Whether the code is in the subset. Code that is no Python is not: the sandbox says what is wrong with it.

    >>> is_same_in_monty("sum(x * 2 for x in data) / len(data)"), is_same_in_monty("round(2.675, 2)")
    (True, False)
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    # A name of its own for a builtin could stand for anything.
    return not bound & _BUILTINS and all(_is_same(node, bound) for node in nodes)


def _is_same(node: ast.AST, bound: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return not name.startswith("__") and (name in bound or name in _known_names())
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return name in _EXACT_MATHS
        case ast.Attribute(attr=name):
            return name in _METHODS
        case ast.Import(names=names):
            return all(alias.name == "math" and alias.asname is None for alias in names)
        case ast.Constant(value=value):
            return value is None or isinstance(value, bool | int | float | str)
        case ast.FormattedValue(conversion=conversion, format_spec=spec):
            return conversion == -1 and _is_plain_format(spec)
        case ast.Call(func=ast.Name(id="round"), args=arguments, keywords=keywords):
            return len(arguments) == 1 and not keywords
        case ast.Call(func=ast.Name(id="print"), args=arguments):
            return all(_is_text(argument) for argument in arguments)
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
            return False
        case ast.Is() | ast.IsNot() | ast.MatMult():
            return False
        case ast.FunctionDef(decorator_list=decorators, returns=returns):
            return not decorators and returns is None
        case _:
            return isinstance(node, _NODES)


def _known_names() -> frozenset[str]:
    names = _BUILTINS | {"data", "context", "math"}
    return names if _PYTHON_SUMS_LIKE_MONTY else names - {"sum"}


def _is_text(argument: ast.expr) -> bool:
    return isinstance(argument, ast.JoinedStr) or (
        isinstance(argument, ast.Constant) and not isinstance(argument.value, float)
    )


def _is_plain_format(spec: ast.expr | None) -> bool:
    match spec:
        case ast.JoinedStr(values=[ast.Constant(value=str(text))]):
            return _FORMAT.fullmatch(text) is not None
        case _:
            return False
