"""Agents that play episodes: programs in any language that use the run's model and MCP servers.

program ──▶ gateway (HTTP on loopback) ──▶ Session (one episode) ──▶ History (ids) ──▶ TokenTree ──▶ Trajectory
"""
