"""Health: each update's figures, judged by rules, become verdicts in words with a likely cause and a next thing to try.

Rules are small functions in tables. `rules` has those about the episodes played and about how far an update moved the
policy, `trends` those about whether the numbers can be trusted and about the run so far.
"""

from mcprl.checks.health.judge import RULES, Health
from mcprl.verdicts import KL_BAD, KL_WARN, LEARNABLE_SHARE, RATIO_BAND, RATIO_STD, VALID_CALLS

__all__ = ["KL_BAD", "KL_WARN", "LEARNABLE_SHARE", "RATIO_BAND", "RATIO_STD", "RULES", "VALID_CALLS", "Health"]
