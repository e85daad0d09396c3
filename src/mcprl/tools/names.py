"""Names of tools and arguments (allow and deny patterns, aliases), and rules for errors in the text of results.

An alias never replaces a name that the tool itself has: `{ticker: symbol, symbol: ticker}` works for tools with
`symbol` and for tools with `ticker`. Aliases do not chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from mcprl.bounds import is_found
from mcprl.config import ErrorRule
from mcprl.errors import Fault


def matches(tool: str, patterns: Sequence[str]) -> bool:
    """Return True if a tool's name matches one of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def is_offered(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Return True if a tool is allowed and not denied. `deny` takes precedence."""
    return matches(tool, allow) and not matches(tool, deny)


SEARCHED_CHARS = 2048
"""How many characters of a result the rules search. Error messages are at the beginning; long results are not errors.

`$` matches at the end of the searched part.
"""


def recognise(text: str, is_error: bool, rules: Sequence[ErrorRule]) -> Fault | None:
    """Return whose fault an error in a result is; None if the result is not an error.

    The first matching rule decides, even if the server reports success. If no rule matches, an error that the server
    reports is the policy's fault, because MCP intends such errors for the model.
    """
    for rule in rules:
        if is_found(rule.match, text[:SEARCHED_CHARS]):
            return Fault(rule.fault)
    return Fault.POLICY if is_error else None


def resolve_tool(name: str, offered: Collection[str], aliases: Mapping[str, str]) -> str:
    """Return the tool that `name` refers to. An unknown name is returned unchanged, for use in the error message."""
    if name in offered:
        return name
    target = aliases.get(name)
    return target if target is not None and target in offered else name


def resolve_arguments(
    arguments: Mapping[str, Any], properties: Collection[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Rename arguments to match the tool's schema. Returns a new dictionary in the same order.

    An argument is renamed if the tool has the target name but not the given name, and no other argument of the call
    provides the target, directly or through a second alias. Nothing is dropped: an ambiguous argument keeps its name,
    and validation reports it.

    resolve_arguments({"python_code": "1+1"}, {"code"}, {"python_code": "code"}) == {"code": "1+1"}
    """
    if not aliases:
        return dict(arguments)
    target = {
        name: aliases[name]
        for name in arguments
        if name in aliases and name not in properties and aliases[name] in properties and aliases[name] not in arguments
    }
    claims = Counter(target.values())
    return {
        target[name] if name in target and claims[target[name]] == 1 else name: value
        for name, value in arguments.items()
    }
