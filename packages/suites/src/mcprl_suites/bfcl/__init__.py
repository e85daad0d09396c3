"""BFCL v4 multi-turn as a suite: 800 conversations with simulators, judged with the benchmark's own checker."""

from __future__ import annotations

from mcprl_suites.bfcl.suite import BfclMultiTurn, make_suite

__all__ = ["BfclMultiTurn", "make_suite"]
