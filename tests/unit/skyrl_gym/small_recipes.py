"""A recipe with two small MCP servers on their standard streams, one of which dies when it is asked to."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = ["task_line", "write_recipe"]

TESTS = Path(__file__).resolve().parents[2]
SERVERS = {
    "meeting": TESTS / "unit" / "skyrl_gym" / "meeting_server.py",
    "frail": TESTS / "contract" / "tools" / "faulty_server.py",
}


def task_line(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": task_id, "prompt": f"Do {task_id}.", "answer": "done", "max_turns": 3, **fields}


def write_recipe(folder: Path, model: Path, tasks: Sequence[dict[str, Any]], **sections: Any) -> Path:
    """A recipe in a folder of its own, with the sections given besides those that every one needs."""
    folder.mkdir(exist_ok=True)
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    (folder / "preamble.json").write_text(json.dumps([{"role": "system", "content": "Use the tools."}]))
    servers = {name: {"command": sys.executable, "args": [str(path)]} for name, path in SERVERS.items()}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    recipe = {
        "name": "small",
        "model": {"path": str(model), "renderer": "chatml"},
        "tasks": {"train": "tasks.jsonl", "preamble": "preamble.json"},
        "servers": {"file": "servers.json", "settings": {"frail": {"allow": ["crash"]}}},
        **sections,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path
