"""Names of tools and arguments: allow and deny patterns, aliases, and results that are errors in disguise.

An alias never replaces a name that a tool really has: `{ticker: symbol, symbol: ticker}` serves tools that say `symbol`
and tools that say `ticker` at once. Aliases do not chain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mcprl.config import ErrorRule
from mcprl.errors import Fault

__all__ = [
    "SEARCHED_CHARS",
    "CompiledRule",
    "compile_rules",
    "is_offered",
    "matches",
    "recognise",
    "resolve_arguments",
    "resolve_tool",
]


def matches(tool: str, patterns: Sequence[str]) -> bool:
    """Whether a tool's name fits any of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def is_offered(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Whether a tool is allowed and not denied: a denial wins."""
    return matches(tool, allow) and not matches(tool, deny)


SEARCHED_CHARS = 2048
"""How much of a result the rules see. An error stands at the beginning, and long results are no errors.

The regular expressions are the user's, and Python's take time quadratic in the text for as plain a rule as
`\\w+: error` where it does not match: at most about 60 ms for this many characters, a minute for 64 KiB. A rule of
exponential time, such as `(a+)+$`, stays the user's to avoid. `$` matches at the end of the part that is seen.
"""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule ready to use.

    CompiledRule(pattern=re.compile('"error": "(rate limit|upstream)'), fault=Fault.INFRASTRUCTURE)
    """

    pattern: re.Pattern[str]
    fault: Fault


def compile_rules(rules: Sequence[ErrorRule]) -> tuple[CompiledRule, ...]:
    """The rules of a server's settings, in their order."""
    return tuple(CompiledRule(re.compile(rule.match), Fault(rule.fault)) for rule in rules)


def recognise(text: str, is_error: bool, rules: Sequence[CompiledRule]) -> Fault | None:
    """Whose fault a result is, or None where it is no error.

    The first rule that matches decides, whatever the server says. Where none does, an error that the server reports
    itself is the policy's: MCP means it to be read by the model.
    """
    for rule in rules:
        if rule.pattern.search(text, 0, SEARCHED_CHARS):
            return rule.fault
    return Fault.POLICY if is_error else None


def resolve_tool(name: str, offered: Collection[str], aliases: Mapping[str, str]) -> str:
    """The tool that `name` means. A name that means none comes back as it is, for the answer to quote it."""
    if name in offered:
        return name
    meant = aliases.get(name)
    return meant if meant is not None and meant in offered else name


def resolve_arguments(
    arguments: Mapping[str, Any], properties: Collection[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments under the names that the tool knows, in their order, as a new dictionary.

    An argument is renamed where the tool has the argument meant, has none of the name given, and the one meant is
    given neither by its own name nor by a second alias. Nothing is ever dropped: what stays ambiguous keeps its name,
    and the check of the arguments explains it.

    resolve_arguments({"python_code": "1+1"}, {"code"}, {"python_code": "code"}) == {"code": "1+1"}
    """
    if not aliases:
        return dict(arguments)
    meant = {
        name: aliases[name]
        for name in arguments
        if name in aliases and name not in properties and aliases[name] in properties and aliases[name] not in arguments
    }
    claims = Counter(meant.values())
    return {
        meant[name] if name in meant and claims[meant[name]] == 1 else name: value for name, value in arguments.items()
    }
