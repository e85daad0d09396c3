"""Health: rules judge the figures of each step. A verdict describes the figure, a likely cause and what to try next.

Rules are small functions in tables. `rules` has those about episodes and about how far an update moved the policy.
`trends` has those about whether the numbers can be trusted, and about the run so far.
"""

from mcprl.checks.health.judge import RULES, Health

__all__ = ["RULES", "Health"]
