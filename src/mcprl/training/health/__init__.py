"""Health: each update's figures, judged by rules, become verdicts in words with a likely cause and a next thing to try.

Rules are small functions in tables: `episode_rules` about what was played, `trust_rules` about whether the numbers can
be trusted, `step_rules` about how far an update moved the policy, `course_rules` about the run so far.
"""

from mcprl.training.health.bars import KL_BAD, KL_WARN, LEARNABLE_SHARE, RATIO_BAND, RATIO_STD, VALID_CALLS
from mcprl.training.health.judge import RULES, Health

__all__ = ["KL_BAD", "KL_WARN", "LEARNABLE_SHARE", "RATIO_BAND", "RATIO_STD", "RULES", "VALID_CALLS", "Health"]
