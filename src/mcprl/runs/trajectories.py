"""Reads and writes trajectories: as rows of a Parquet file, or one by one as JSON.

Both formats have one entry for each field of a `Trajectory` and keep numbers and strings exactly. Turns and reward
parts have no fixed shape, so they are JSON inside a row. That JSON is ASCII, because Parquet does not accept lone
surrogates. A pair of surrogates is read back as one character.
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

# pyarrow has no type annotations.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenNotes:
    """Per-token values of one trajectory in an update.

    TokenNotes(learnable=(False, True, True), advantages=(0.0, 0.7, 0.7), ratios=(0.0, 1.0, 0.97))
    """

    learnable: tuple[bool, ...]
    advantages: tuple[float, ...]
    ratios: tuple[float, ...]


def write_token_notes(path: Path, batch: Batch, ratios: Columns) -> None:
    """Write the token notes of a step durably and atomically."""
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
    _write_table(path, table)


def read_token_notes(path: Path) -> dict[tuple[str, int], TokenNotes]:
    """Read the token notes of a step, keyed by task id and member (the index of the episode)."""
    rows: list[dict[str, Any]] = _PARQUET.read_table(path).to_pylist()
    return {
        (row["task_id"], row["member"]): TokenNotes(
            learnable=tuple(row["learnable"]), advantages=tuple(row["advantages"]), ratios=tuple(row["ratios"])
        )
        for row in rows
    }


_TRAJECTORY = TypeAdapter(Trajectory)
_JSON_COLUMNS = ("turns", "reward_parts", "later_grammars", "forks")


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a Parquet file with one row per trajectory, durably and atomically."""
    rows = [_fields(trajectory) for trajectory in trajectories]
    for row in rows:
        row.update({name: json.dumps(row[name], default=_fields) for name in _JSON_COLUMNS})
    _write_table(path, _ARROW.Table.from_pylist(rows))


def _write_table(path: Path, table: Any) -> None:
    sink = _ARROW.BufferOutputStream()
    _PARQUET.write_table(table, sink)
    write_file(path, sink.getvalue().to_pybytes())


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read the trajectories of a Parquet file."""
    rows: list[dict[str, Any]] = _PARQUET.read_table(path).to_pylist()
    for row in rows:
        row.update({name: json.loads(row[name]) for name in _JSON_COLUMNS if name in row})
    return [_TRAJECTORY.validate_python(row) for row in rows]


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """Encode a trajectory as JSON without line breaks."""
    # A lone surrogate is not valid UTF-8, but the policy can write one in its arguments.
    return json.dumps(trajectory, default=_fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_trajectory(encoded: bytes) -> Trajectory:
    """Decode a trajectory. Raises ValueError if the bytes are not a trajectory."""
    try:
        return _TRAJECTORY.validate_python(json.loads(encoded.decode("utf-8", "surrogatepass")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _fields(value: Any) -> dict[str, Any]:
    # Python's json, because pydantic's limits the nesting, and the policy may nest arguments to any depth.
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
