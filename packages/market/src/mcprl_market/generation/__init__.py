"""Tasks about the offline world, each with a checkable answer and a working solution."""

from mcprl_market.generation.assembly import SHARES, generate
from mcprl_market.generation.families import FAMILIES

__all__ = ["FAMILIES", "SHARES", "generate"]
