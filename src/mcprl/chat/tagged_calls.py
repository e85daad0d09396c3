"""Calls whose arguments are written in tags: whether one is such a call from its beginning to its end.

`renderers` searches these for whole arguments and passes over what else stands in a call, so an argument whose tag is
not closed would be left out without a word, and the tool called without it.
"""

from __future__ import annotations

import re

__all__ = ["is_whole"]

# Nothing in these is matched in two ways (`*+` and `++` give back nothing), which keeps the time linear.
_FUNCTION = re.compile(
    r"\s*+<function=[^>]++>\s*+"
    r"(?:<parameter=[^>]++>(?:(?!</parameter>).)*+</parameter>\s*+)*+"
    r"(?:</function>\s*+)?+",
    re.DOTALL,
)
_INVOKES = re.compile(
    r"\s*+(?:<invoke name=\"[^\"]++\">\s*+"
    r"(?:<parameter name=\"[^\"]++\">(?:(?!</parameter>|</invoke>).)*+</parameter>\s*+)*+"
    r"</invoke>\s*+)*+",
    re.DOTALL,
)


def _pairs(mark: str = "") -> re.Pattern[str]:
    """A name, then keys and values. The tags of some families end in a mark of their own."""
    key = f"<arg_key{mark}>(?:(?!</arg_key{mark}>).)*+</arg_key{mark}>"
    value = f"<arg_value{mark}>(?:(?!</arg_value{mark}>).)*+</arg_value{mark}>"
    return re.compile(rf"[^<]*+(?:<tool_sep{mark}>\s*+)?+(?:{key}\s*+{value}\s*+)*+", re.DOTALL)


_SYNTAXES = {
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), _FUNCTION),
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _FUNCTION),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), _pairs()),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1", "laguna-xs-2.1", "laguna-s-2.1"), _pairs()),
    "hy3": _pairs(":opensource"),
    "minimax-m2": _INVOKES,
}


def is_whole(family: str, call: str) -> bool:
    """Whether all of a call is a call, in a family that writes arguments in tags; true in any other.

    >>> is_whole("glm-4.5", "send<arg_key>to</arg_key><arg_value>Ana</arg_value>")
    True
    >>> is_whole("glm-4.5", "send<arg_key>to</arg_key><arg_value>Ana")
    False
    """
    syntax = _SYNTAXES.get(family)
    return syntax is None or syntax.fullmatch(call) is not None
