"""Every kind of task that the generator knows, by module: what one call tells, what follows from it, and reports."""

from __future__ import annotations

from mcprl.tasks.generation.drafts import Family
from mcprl.tasks.generation.families import (
    arithmetic,
    companies,
    comparing,
    lookups,
    movers,
    posting,
    quotes,
    reports,
    studies,
    trading,
)

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (
    *arithmetic.FAMILIES,
    *quotes.FAMILIES,
    *companies.FAMILIES,
    *lookups.FAMILIES,
    *trading.FAMILIES,
    *movers.FAMILIES,
    *comparing.FAMILIES,
    *posting.FAMILIES,
    *reports.FAMILIES,
    *studies.FAMILIES,
)
