"""Health: rules that judge the figures of each step. A verdict has the figure, a likely cause and what to try next.

`rules` has the rules about episodes and about how far an update moved the policy. `trends` has the rules about whether
the numbers can be trusted, and about changes over the run.
"""

from mcprl.checks.health.judge import RULES, Health

__all__ = ["RULES", "Health"]
