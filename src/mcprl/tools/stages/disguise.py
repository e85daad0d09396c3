"""Errors in the text of results: those that a server reports as successes, and whose fault an error is.

Many servers answer `{"error": "rate limit reached"}` and call it a success. Trained on as it is, that teaches a policy
that its call was wrong. The user's rules say what such texts look like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcprl.config import ErrorRule
from mcprl.errors import Fault
from mcprl.tools.stages.permissions import matches

__all__ = ["SEARCHED_CHARS", "CompiledRule", "compile_rules", "recognise"]

SEARCHED_CHARS = 2048
"""How much of a result the rules see. An error stands at the beginning, and long results are no errors.

The regular expressions are the user's, and Python's take time quadratic in the text for as plain a rule as
`\\w+: error` where it does not match: at most about 60 ms for this many characters, a minute for 64 KiB. A rule of
exponential time, such as `(a+)+$`, stays the user's to avoid. `$` matches at the end of the part that is seen.
"""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule ready to use.

    CompiledRule(pattern=re.compile('"error": "(rate limit|upstream)'), fault=Fault.INFRASTRUCTURE, tools=("fmp_*",))
    """

    pattern: re.Pattern[str]
    fault: Fault
    tools: tuple[str, ...] = ("*",)


def compile_rules(rules: Sequence[ErrorRule]) -> tuple[CompiledRule, ...]:
    """The rules of a server's settings, in their order."""
    return tuple(CompiledRule(re.compile(rule.match), Fault(rule.fault), rule.tools) for rule in rules)


def recognise(tool: str, text: str, is_error: bool, rules: Sequence[CompiledRule]) -> Fault | None:
    """Whose fault a result is, or None where it is no error.

    The first rule that matches decides, whatever the server says. Where none does, an error that the server reports
    itself is the policy's: MCP means it to be read by the model.
    """
    for rule in rules:
        if matches(tool, rule.tools) and rule.pattern.search(text, 0, SEARCHED_CHARS):
            return rule.fault
    return Fault.POLICY if is_error else None
