"""A verdict: what figures mean, in words, and what to do about it; and the bars that figures are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "ACTIVE_FRACTION",
    "GRAVEST_FIRST",
    "KL_BAD",
    "KL_WARN",
    "LEARNABLE_SHARE",
    "RATIO_BAND",
    "RATIO_STD",
    "VALID_CALLS",
    "VALID_CALLS_BY_STEP",
    "Severity",
    "Verdict",
    "mean",
]

# The bars of a step and of a whole run.

# With fewer tokens that carry loss, most of a batch's cost goes into tokens that teach nothing.
LEARNABLE_SHARE = 0.3
# The clip's own band: a mean outside it says that the clip no longer holds the policy near its data.
RATIO_BAND = (0.8, 1.2)
# Beyond this, single tokens weigh several times others and the gradient is mostly theirs.
RATIO_STD = 0.5
# Nats a token between the policy that sampled and the policy now. A sound update stays below 0.1; at 0.5 the data is
# mostly another policy's, at 3 (a token is 20 times likelier or rarer) it says nothing about this one.
KL_WARN = 0.5
KL_BAD = 3.0
# Below it, more than two fifths of the learnable tokens do not move the weights.
ACTIVE_FRACTION = 0.6
# A policy that writes its calls rightly nine times of ten learns from what tools answer, not from their refusals.
VALID_CALLS = 0.9
VALID_CALLS_BY_STEP = 50


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


def mean(values: Sequence[float]) -> float:
    """The mean of figures. Each is divided first: a sum of huge numbers would overflow."""
    return sum(value / len(values) for value in values)
