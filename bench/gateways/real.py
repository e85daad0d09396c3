"""The agent of tests/unit/agents/real_agents that starts fastest."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["vercel_agent"]

ROOT = Path(__file__).resolve().parents[2]


def vercel_agent() -> list[str]:
    """Return its command. Node looks for packages beside the program."""
    folder = ROOT / ".cache" / "npm" / "vercel-agent"
    if not folder.exists():
        raise SystemExit(f"{folder} is missing: run scripts/setup agents")
    program = ROOT / "tests" / "unit" / "agents" / "real_agents" / "vercel_agent.mjs"
    return [shutil.which("node") or "node", shutil.copy(program, folder)]
