"""Multi-MCP RL: reinforcement learning of multi-turn tool use on real MCP servers.

Data flows one way, and the folders read in that order:

    Task ──▶ Episode ──▶ Trajectory ──▶ Batch ──▶ Update
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
