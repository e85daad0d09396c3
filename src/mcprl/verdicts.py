"""A verdict: what figures mean, in words, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["GRAVEST_FIRST", "Severity", "Verdict"]


class Severity(StrEnum):
    """What to make of a check: go on, go on knowing, or mend it first."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


GRAVEST_FIRST = (Severity.BAD, Severity.WARN, Severity.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the figures mean, in words, and what to do; `fix` is empty where there is nothing to do.

    `what` has the figure and its likely cause, `fix` the next thing to try. `name` is that of the rule that found it,
    the same whatever the figures are; it is empty where no rule did.

    Verdict(severity=Severity.WARN, name="clipping",
            what="the clip cuts off 41% of the tokens: the policy moves further in one update than its data supports",
            fix="lower learner.learning_rate, or algorithm.epochs")
    """

    severity: Severity
    what: str
    fix: str
    name: str = ""
