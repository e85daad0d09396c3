"""Other names of tools and arguments, so that a policy is not failed for a word that has only one meaning.

An alias never replaces a name that means something itself: `{ticker: symbol, symbol: ticker}` therefore serves tools
that say `symbol` and tools that say `ticker` at once. Aliases do not chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["resolve_arguments", "resolve_tool"]


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
