"""Verdicts on metrics, and the thresholds that they use. A verdict explains what a figure means and what to do about
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# Thresholds for a step and for a whole run.

# With a smaller share of tokens that carry loss, most of the cost of a batch is wasted.
LEARNABLE_SHARE = 0.3
# The range of the clip. If the mean ratio is outside, the clip no longer keeps the policy close to its data.
RATIO_BAND = (0.8, 1.2)
# Beyond this, a few tokens dominate the gradient.
RATIO_STD = 0.5
# KL in nats per token between the sampling policy and the current one. A sound update stays below 0.1. At 0.5 the data
# is mostly off-policy; at 3 (probabilities differ by a factor of 20) it says nothing about the current policy.
KL_WARN = 0.5
KL_BAD = 3.0
# Below this, more than 40% of the learnable tokens have no gradient.
ACTIVE_FRACTION = 0.6
# Above this, a policy learns more from the results of tools than from their error messages.
VALID_CALLS = 0.9
VALID_CALLS_BY_STEP = 50


class Severity(StrEnum):
    """The severity of a verdict: ok, warning, or an error to fix first."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


GRAVEST_FIRST = (Severity.BAD, Severity.WARN, Severity.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What some figures mean, and what to do.

    `what` has the figure and its likely cause. `fix` is the next thing to try, empty if there is nothing to do. `name`
    is the name of the rule that made the verdict, if any.

    Verdict(severity=Severity.WARN, name="clipping",
            what="the clip cuts off 41% of the tokens: the policy moves further in one update than its data supports",
            fix="lower learner.learning_rate, or algorithm.epochs")
    """

    severity: Severity
    what: str
    fix: str
    name: str = ""


def mean(values: Sequence[float]) -> float:
    """Return the mean. Each value is divided first, because a sum of huge numbers would overflow."""
    return sum(value / len(values) for value in values)
