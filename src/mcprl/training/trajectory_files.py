"""How trajectories are written and read: as the rows of a Parquet file, or one by one as JSON in bytes.

Both hold the same record, one entry for each field of a `Trajectory`, and give back what was written: numbers bit for
bit, texts character for character. Turns and reward parts have no fixed shape, so they are JSON inside of a row. That
JSON is ASCII, as Parquet takes no half of a surrogate pair; two halves side by side come back as the one character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
from pydantic import TypeAdapter

from mcprl.durable import write_file
from mcprl.records import Trajectory

__all__ = ["decode_trajectory", "encode_trajectory", "read_trajectories", "write_trajectories"]

# pyarrow ships no types.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)
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
