"""Tasks made from the offline world, each with an answer that can be checked and a solution that is known to work."""

from mcprl_market.generation.assembly import SHARES, generate
from mcprl_market.generation.families import FAMILIES

__all__ = ["FAMILIES", "SHARES", "generate"]
