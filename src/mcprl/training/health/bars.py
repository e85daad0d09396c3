"""The bars that a run is measured by at its end and in each step: the same in both, so they stand here."""

from __future__ import annotations

__all__ = [
    "ACTIVE_FRACTION",
    "KL_BAD",
    "KL_WARN",
    "LEARNABLE_SHARE",
    "RATIO_BAND",
    "RATIO_STD",
    "VALID_CALLS",
    "VALID_CALLS_BY_STEP",
]

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
