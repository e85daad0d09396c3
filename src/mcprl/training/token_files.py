"""What an update made of each token, kept beside the trajectories for those who look: tokens/step-00000.parquet.

One row for each trajectory of the batch, with an entry for each of its tokens: whether it carried loss, its advantage,
and the ratio of the policy's probability to the old one. Trajectories that were left out of the batch have no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet

from mcprl.durable import write_file
from mcprl.records import Batch, Columns

__all__ = ["TokenNotes", "read_token_notes", "write_token_notes"]

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
