"""All families of tasks, by module: questions that need one call, questions that need some computation, and reports."""

from __future__ import annotations

from mcprl_market.generation.drafts import Family
from mcprl_market.generation.families import computations, lookups, reports

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = tuple(
    value for module in (lookups, computations, reports) for value in vars(module).values() if isinstance(value, Family)
)
"""In the order of definition, because the tasks of a seed depend on it."""
