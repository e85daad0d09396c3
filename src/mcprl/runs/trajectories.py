"""How trajectories are written and read: as the rows of a Parquet file, or one by one as JSON in bytes.

Both hold the same record, one entry for each field of a `Trajectory`, and give back what was written: numbers bit for
bit, texts character for character. Turns and reward parts have no fixed shape, so they are JSON inside of a row. That
JSON is ASCII, as Parquet takes no half of a surrogate pair; two halves side by side come back as the one character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
from pydantic import TypeAdapter

from mcprl.files import write_file
from mcprl.records import Batch, Columns, Trajectory

__all__ = [
    "decode_trajectory",
    "encode_trajectory",
    "read_token_notes",
    "read_trajectories",
    "write_token_notes",
    "write_trajectories",
]


# pyarrow ships no types.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNotes:
    """What an update made of the tokens of one trajectory.

    TokenNotes(learnable=(False, True, True), advantages=(0.0, 0.7, 0.7), ratios=(0.0, 1.0, 0.97))
    """

    learnable: tuple[bool, ...]
    advantages: tuple[float, ...]
    ratios: tuple[float, ...]


def write_token_notes(path: Path, batch: Batch, ratios: Columns) -> None:
    """Write the file of a step; it is durable and whole once it is there."""
    trajectories = batch.trajectories
    table = _ARROW.table(
        {
            "task_id": [t.task_id for t in trajectories],
            "member": [t.member for t in trajectories],
            "learnable": _ARROW.array(batch.learnable, _ARROW.list_(_ARROW.bool_())),
            "advantages": _ARROW.array(batch.advantages, _ARROW.list_(_ARROW.float32())),
            "ratios": _ARROW.array(ratios, _ARROW.list_(_ARROW.float32())),
        }
    )
    sink = _ARROW.BufferOutputStream()
    _PARQUET.write_table(table, sink)
    write_file(path, sink.getvalue().to_pybytes())


def read_token_notes(path: Path) -> dict[tuple[str, int], TokenNotes]:
    """The notes of a step, by task and member."""
    rows: list[dict[str, Any]] = _PARQUET.read_table(path).to_pylist()
    return {
        (row["task_id"], row["member"]): TokenNotes(
            learnable=tuple(row["learnable"]), advantages=tuple(row["advantages"]), ratios=tuple(row["ratios"])
        )
        for row in rows
    }


_TRAJECTORY = TypeAdapter(Trajectory)
_JSON_COLUMNS = ("turns", "reward_parts")


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a Parquet file, one row a trajectory; it is durable and whole once it is there."""
    rows = [_fields(trajectory) for trajectory in trajectories]
    for row in rows:
        row.update({name: json.dumps(row[name], default=_fields) for name in _JSON_COLUMNS})
    sink = _ARROW.BufferOutputStream()
    _PARQUET.write_table(_ARROW.Table.from_pylist(rows), sink)
    write_file(path, sink.getvalue().to_pybytes())


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of a Parquet file, as they were written."""
    rows: list[dict[str, Any]] = _PARQUET.read_table(path).to_pylist()
    for row in rows:
        row.update({name: json.loads(row[name]) for name in _JSON_COLUMNS})
    return [_TRAJECTORY.validate_python(row) for row in rows]


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """A trajectory as JSON without a line break."""
    # Half a surrogate pair is no proper UTF-8, but a policy can write one in its arguments.
    return json.dumps(trajectory, default=_fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_trajectory(encoded: bytes) -> Trajectory:
    """The trajectory that was encoded. Raises ValueError where the bytes are none."""
    try:
        return _TRAJECTORY.validate_python(json.loads(encoded.decode("utf-8", "surrogatepass")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _fields(value: Any) -> dict[str, Any]:
    # Python's own JSON, both ways: pydantic's has a limit of nesting, and a policy nests its arguments as it likes.
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
