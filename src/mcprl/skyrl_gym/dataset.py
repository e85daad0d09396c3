"""Tasks as a dataset that SkyRL reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet

from mcprl.config import RunConfig
from mcprl.durable import write_file
from mcprl.episodes import require_scorable
from mcprl.errors import BadValueError, TaskFileError
from mcprl.skyrl_gym.rows import row_of
from mcprl.tasks import load_tasks

__all__ = ["write_dataset"]

# pyarrow ships no types.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)


def write_dataset(config: RunConfig, path: Path, *, tasks: Path | None = None) -> int:
    """Write the recipe's training tasks, or those of another file, as Parquet. Returns how many there are.

    The file is whole or, on an error, as before. Raises a ConfigurationError where a task cannot be scored.
    """
    if path.suffix != ".parquet":
        raise BadValueError(
            f"{path} does not end in .parquet, by which SkyRL knows the format", fix=f"name it {path.stem}.parquet"
        )
    loaded = load_tasks(tasks or config.tasks.train)
    require_scorable(loaded, config.rewards)
    rows = [row_of(task, source=config.name) for task in loaded]
    sink = _ARROW.BufferOutputStream()
    _PARQUET.write_table(_ARROW.Table.from_pylist(rows), sink)
    try:
        write_file(path, sink.getvalue().to_pybytes())
    except OSError as error:
        raise TaskFileError(f"cannot write {path}: {error.strerror}", fix="choose another place") from error
    return len(rows)
