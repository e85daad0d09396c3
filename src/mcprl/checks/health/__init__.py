"""Health: rules judge each update's figures; verdicts give the figure in words, a likely cause and what to try next.

Rules are small functions in tables. `rules` has those about the episodes played and about how far an update moved the
policy, `trends` those about whether the numbers can be trusted and about the run so far.
"""

from mcprl.checks.health.judge import RULES, Health

__all__ = ["RULES", "Health"]
