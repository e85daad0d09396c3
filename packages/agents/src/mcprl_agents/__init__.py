"""Agents that play episodes: a program of any language, whose model and MCP servers are those of the run.

program ──▶ gateway (HTTP on loopback) ──▶ Session (one episode) ──▶ History (ids) ──▶ TokenTree ──▶ Trajectory
"""
