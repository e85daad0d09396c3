"""Loads the multi-turn parts of the `bfcl-eval` wheel: tasks, answers, function documents and simulators.

The rest of the wheel (model handlers, search and memory back ends) needs libraries that are not used here, so the wheel
is installed without dependencies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mcprl.errors import BadValueError, MissingExtraError

VERSION: Final = "2026.3.23"
CATEGORIES: Final = ("base", "miss_func", "miss_param", "long_context")
"""Categories of tasks, 200 each: plain, functions announced late, parameters given late, large worlds."""

SIMULATORS: Final[Mapping[str, str]] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
"""Simulator class → the name of its module and of its documents file."""

_FIX: Final = f"pip install --no-deps bfcl-eval=={VERSION} mpmath"
_SOURCES: Final = "eval_checker.multi_turn_eval.func_source_code"
_PREFIX: Final = "multi_turn_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One task of the wheel.

    `messages[i]` is the user's i-th message; it is empty if it only announces functions, which are `held_back[i]`.
    `config` is the initial state of each simulator.

    Entry(id="multi_turn_miss_func_0", category="miss_func", simulators=("TwitterAPI", "GorillaFileSystem"),
          messages=((…,), (…,), (…,), (), (…,)), held_back={3: ("sort",)}, config={"GorillaFileSystem": {…}, …})
    """

    id: str
    category: str
    simulators: tuple[str, ...]
    messages: tuple[tuple[Mapping[str, str], ...], ...]
    held_back: Mapping[int, tuple[str, ...]]
    config: Mapping[str, Any]

    @property
    def is_long(self) -> bool:
        """Whether simulators fill their world with objects that the task does not need."""
        return self.category == "long_context"


@cache
def entries(category: str) -> Mapping[str, Entry]:
    """Return all tasks of a category by id, in the order of the wheel."""
    rows = _lines(f"BFCL_v4_{_PREFIX}{category}.json")
    return {row["id"]: _entry(row, category) for row in rows}


def entry_of(task_id: str) -> Entry:
    """Return the task with this id. Raises BadValueError if there is none."""
    category = task_id.removeprefix(_PREFIX).rpartition("_")[0]
    found = entries(category).get(task_id) if category in CATEGORIES else None
    if found is None:
        raise BadValueError(
            f"BFCL has no multi-turn task {task_id!r}",
            fix=f"use an id from {_PREFIX}base_0 to {_PREFIX}long_context_199",
        )
    return found


@cache
def gold_answers(category: str) -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """Return the calls that solve each task as Python expressions, one tuple per user message."""
    rows = _lines(f"possible_answer/BFCL_v4_{_PREFIX}{category}.json")
    return {row["id"]: tuple(tuple(calls) for calls in row["ground_truth"]) for row in rows}


@cache
def function_documents(simulator: str) -> tuple[Mapping[str, Any], ...]:
    """Return the document of each public method of a simulator."""
    return tuple(_lines(f"multi_turn_func_doc/{SIMULATORS[simulator]}.json"))


@cache
def simulator_class(name: str) -> type[Any]:
    """Return the class of a simulator. Raises MissingExtraError if the wheel or mpmath is missing."""
    return getattr(wheel_module(f"{_SOURCES}.{SIMULATORS[name]}"), name)


def wheel_module(name: str) -> Any:
    """Import a module of the wheel by its name below `bfcl_eval`."""
    _data_folder()
    try:
        return import_module(f"bfcl_eval.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"BFCL's simulators need {error.name}, which is not installed", fix=_FIX) from error


@cache
def _data_folder() -> Path:
    try:
        installed = version("bfcl-eval")
    except PackageNotFoundError as error:
        raise MissingExtraError("BFCL needs the package bfcl-eval, which is not installed", fix=_FIX) from error
    if installed != VERSION:
        # Other versions have other tasks and answers, so scores could not be compared.
        raise MissingExtraError(f"BFCL needs bfcl-eval {VERSION}, but {installed} is installed", fix=_FIX)
    found = find_spec("bfcl_eval")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def _lines(name: str) -> list[dict[str, Any]]:
    text = (_data_folder() / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _entry(row: Mapping[str, Any], category: str) -> Entry:
    held_back: Mapping[str, list[str]] = row.get("missed_function", {})
    return Entry(
        id=row["id"],
        category=category,
        simulators=tuple(row["involved_classes"]),
        messages=tuple(tuple(messages) for messages in row["question"]),
        held_back={int(place): tuple(names) for place, names in held_back.items()},
        config=row["initial_config"],
    )
