"""A correct recipe in its own files, for tests to plant a fault in, and its examination."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mcprl.checks.doctor import Check, Examination, Finding, examine
from mcprl.checks.doctor.checks import CHECKS

SERVER = Path(__file__).with_name("sick_server.py")


class Silence:
    """Ignores the progress of an examination."""

    def stage(self, text: str) -> None: ...

    def episode_finished(self, step, outcome) -> None: ...

    def step_finished(self, step, metrics, verdicts) -> None: ...


def tool(name: str, description: str = "City of a colleague.", **schema: Any) -> dict[str, Any]:
    schema = schema or {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": True},
    }


def server(*tools: dict[str, Any], **plan: Any) -> dict[str, Any]:
    """An entry of an mcpServers file for the sick server."""
    # -S: it needs nothing that is installed, and starts at once.
    return {"command": sys.executable, "args": ["-S", str(SERVER), json.dumps({"tools": list(tools), **plan})]}


def task(task_id: str, name: str, **fields: Any) -> dict[str, Any]:
    call = {"tool": "find_person", "arguments": {"name": name}}
    return {"id": task_id, "prompt": f"Where is {name}?", "answer": "Lima", "calls": [call]} | fields


@dataclass
class Patient:
    """A recipe and its files, written after a test has changed them."""

    folder: Path
    settings: dict[str, Any]
    servers: dict[str, Any] = field(default_factory=lambda: {"people": server(tool("find_person"))})
    tasks: list[dict[str, Any]] = field(default_factory=lambda: [task("ana", "Ana"), task("hiro", "Hiro")])
    files: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    model: Path = field(init=False)

    def __post_init__(self) -> None:
        self.model = Path(self.settings["model"]["path"])

    def set(self, dotted: str, value: Any) -> None:
        *sections, key = dotted.split(".")
        target = self.settings
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    def write(self) -> None:
        texts = {
            "recipe.yaml": yaml.safe_dump(self.settings),
            "servers.json": json.dumps({"mcpServers": self.servers}),
            "train.jsonl": "\n".join(json.dumps(line) for line in self.tasks),
        }
        for name, text in (texts | self.files).items():
            (self.folder / name).write_text(text)

    async def examined(self, *, fast: bool = True, only: Iterable[str | Check] | None = None) -> tuple[Finding, ...]:
        """Its findings; `only` names the checks to run, in the doctor's order, after those that it holds itself."""
        chosen = list(only) if only is not None else [check.name for check in CHECKS]
        own = [check for check in chosen if isinstance(check, Check)]
        checks = [*own, *(check for check in CHECKS if check.name in chosen)]
        with tempfile.TemporaryDirectory() as folder, nullcontext(Silence()) as teller:
            examination = Examination(
                recipe=self.recipe, folder=Path(folder), teller=teller, overrides=self.overrides, fast=fast
            )
            return await examine(examination, checks)


def well_patient(folder: Path, model: Path) -> Patient:
    settings = {
        "name": "small",
        "engine": "transformers",
        "model": {"path": str(model), "renderer": "chatml", "dtype": "float32", "context_tokens": 512},
        "tasks": {"train": "train.jsonl"},
        "servers": {"file": "servers.json"},
        "sampling": {"max_tokens": 4},
        "episodes": {"group_size": 2},
        "algorithm": {"minibatches": 1},
        "learner": {"lora_rank": 2, "max_parity_error": 1e-4},
        "training": {"steps": 2, "tasks_per_step": 2, "outputs": str(folder / "outputs")},
    }
    return Patient(folder=folder, settings=settings)
