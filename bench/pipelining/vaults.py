"""The task of the pipeline's bench: vaults, each of which two keys open, one after the other.

The policy sees the name of a vault and turns two keys out of eight, each a call of a real MCP server that takes a
second. It earns the share of the keys that were the right ones. Nothing tells it which they are but the reward.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mcprl.goals import ExpectedCall, Goal
from mcprl.records import Solution, Task, ToolCall
from mcprl.tasks import write_tasks

__all__ = ["KEYS", "VAULTS", "lessons", "write_servers", "write_vaults"]

KEYS = ("amber", "bone", "coral", "dusk", "ebony", "flint", "glass", "honey")
VAULTS = {
    "north": ("coral", "honey"),
    "south": ("amber", "flint"),
    "east": ("glass", "dusk"),
    "west": ("bone", "amber"),
}
_TURNS = 2  # an episode ends with its second call; a lesson has an answer behind it
_SERVER = Path(__file__).resolve().parent / "slow_server.py"


def write_vaults(file: Path) -> None:
    """The task file: a vault a line."""
    write_tasks([_task(f"vault-{vault}", vault, _keys_goal(keys), None) for vault, keys in VAULTS.items()], file)


def write_servers(file: Path) -> None:
    """The mcpServers file."""
    entry = {"command": sys.executable, "args": [str(_SERVER)]}
    file.write_text(json.dumps({"mcpServers": {"vaults": entry}}))


def lessons() -> list[Task]:
    """Tasks whose solutions show how a call is written, and of the keys nothing: each stands in each place as often."""
    made: list[Task] = []
    for number, vault in enumerate(VAULTS):
        for place, first in enumerate(KEYS):
            second = KEYS[(3 * place + number) % len(KEYS)]
            calls = tuple(ToolCall(name="turn", arguments={"key": key}) for key in (first, second))
            solution = Solution(calls=calls, answer="Done.")
            made.append(_task(f"lesson-{vault}-{first}", vault, _keys_goal((first, second)), solution))
    return made


def _task(name: str, vault: str, goal: Goal, solution: Solution | None) -> Task:
    prompt = ({"role": "user", "content": f"Open vault {vault}."},)
    return Task(id=name, prompt=prompt, goal=goal, max_turns=_TURNS + (solution is not None), solution=solution)


def _keys_goal(keys: tuple[str, str]) -> Goal:
    return Goal(calls=tuple(ExpectedCall(tool="turn", arguments={"key": key}) for key in keys))
