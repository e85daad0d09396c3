"""The offline world: a seeded market and chat workspace. If two tools state the same fact, they agree.

Importing this package builds nothing. A world is built when it is first opened.
"""

from __future__ import annotations

from mcprl_market.world.market import Market, open_market
from mcprl_market.world.workspace import Workspace, open_workspace

__all__ = ["Market", "Workspace", "open_market", "open_workspace"]
