"""What a checkpoint knows of the run itself, besides the learner: where it stands and what it goes on from.

Draws of random numbers need no state: each is a function of the seed and of what it is for (`mcprl.seeds`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcprl.durable import storage_faults
from mcprl.errors import OtherStateError
from mcprl.records import Task
from mcprl.tasks import Deal

__all__ = ["RunState", "deal_ids", "deals_of", "read_state", "write_state"]

_FILE = "state.json"
_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after `step` steps.

    RunState(step=12, seed=7, weights_version=11, kl_coefficient=0.02, order={"order": "shuffled", …},
             health={"steps": 12, …}, open_deals={"12": {"tasks": ["meet-ana"], "stand_ins": []}},
             settings={"name": "hello", …}, model="c14e…")

    `open_deals` are the steps that were being collected already, by the ids of their tasks. `settings` and `model` are
    those of `Conditions`.
    """

    step: int
    settings: dict[str, Any]
    model: str
    weights_version: int
    kl_coefficient: float
    order: dict[str, Any]
    health: dict[str, Any]
    open_deals: dict[str, dict[str, list[str]]]
    format: int = _FORMAT


_STATE = TypeAdapter(RunState)


def write_state(folder: Path, state: RunState) -> None:
    """Into an existing folder; the caller makes the file durable."""
    with storage_faults(f"writing {folder / _FILE}"):
        (folder / _FILE).write_text(json.dumps(asdict(state), indent=1) + "\n")


def read_state(folder: Path) -> RunState:
    """Raises OtherStateError where another version of mcprl wrote it."""
    try:
        state = _STATE.validate_json((folder / _FILE).read_bytes())
    except ValidationError as error:
        raise OtherStateError(
            f"{folder / _FILE} is not what this version of mcprl writes: {error.errors()[0]['msg']}",
            fix="resume with the version of mcprl that saved it",
        ) from error
    if state.format != _FORMAT:
        raise OtherStateError(
            f"{folder / _FILE} has format {state.format}, this version of mcprl reads {_FORMAT}",
            fix="resume with the version of mcprl that saved it",
        )
    return state


def deal_ids(deals: Mapping[int, Deal]) -> dict[str, dict[str, list[str]]]:
    """Deals as JSON holds them."""
    return {
        str(step): {"tasks": [task.id for task in deal.tasks], "stand_ins": [task.id for task in deal.stand_ins]}
        for step, deal in deals.items()
    }


def deals_of(ids: Mapping[str, Mapping[str, Sequence[str]]], tasks: Sequence[Task]) -> dict[int, Deal]:
    """The deals that `deal_ids` wrote down. The tasks are those of then: the order of tasks was checked for that."""
    known = {task.id: task for task in tasks}
    return {
        int(step): Deal(
            tasks=tuple(known[task_id] for task_id in deal["tasks"]),
            stand_ins=tuple(known[task_id] for task_id in deal["stand_ins"]),
        )
        for step, deal in ids.items()
    }
