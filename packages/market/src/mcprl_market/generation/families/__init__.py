"""Every kind of task that the generator knows, by module: what one call tells, what follows from it, and reports."""

from __future__ import annotations

from mcprl_market.generation.drafts import Family
from mcprl_market.generation.families.lookups import ARITHMETIC, COMPANIES, LOOKUPS, QUOTES
from mcprl_market.generation.families.studies import COMPARING, MOVERS, STUDIES
from mcprl_market.generation.families.trading import POSTING, REPORTS, TRADING

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (
    *ARITHMETIC,
    *QUOTES,
    *COMPANIES,
    *LOOKUPS,
    *TRADING,
    *MOVERS,
    *COMPARING,
    *POSTING,
    *REPORTS,
    *STUDIES,
)
