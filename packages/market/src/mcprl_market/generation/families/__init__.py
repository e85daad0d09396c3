"""Every family of tasks, by module: what one call tells, what follows from it, and reports."""

from __future__ import annotations

from mcprl_market.generation.drafts import Family
from mcprl_market.generation.families import computations, lookups, reports

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = tuple(
    value for module in (lookups, computations, reports) for value in vars(module).values() if isinstance(value, Family)
)
"""In the order of their definitions, on which the tasks of a seed depend."""
