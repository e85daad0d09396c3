"""A task as a row of SkyRL's dataset: the columns that `write_dataset` writes and `McpTextEnv` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
from pydantic import ValidationError

from mcprl.config import RunConfig
from mcprl.episodes import require_scorable
from mcprl.errors import BadValueError, TaskFileError
from mcprl.files import write_file
from mcprl.records import Task
from mcprl.tasks import load_tasks
from mcprl.tasks.files import decode_strictly
from mcprl.tasks.formats import first_problem, line_of, task_of

ENV_ID = "mcprl"
"""The value of `env_class`."""
TASK_COLUMN = "mcprl_task"
"""The column with the task as JSON text. (As a struct, Parquet would give every task the fields of all tasks.)"""
_FIX = "create the dataset with mcprl_skyrl_gym.write_dataset"


def row_of(task: Task, *, source: str) -> dict[str, Any]:
    """Convert a task to a row. Its prompt is the task's prompt; the environment adds the preamble and the tools.

    {"prompt": [{"role": "user", "content": "Which time zone is Ana's office in?"}], "env_class": "mcprl",
     "data_source": "hello-cpu", "mcprl_task": '{"id": "zone-of-ana", …}'}
    """
    prompt = [{"role": message["role"], "content": message["content"]} for message in task.prompt]
    # ASCII, because Parquet rejects lone surrogates.
    written = json.dumps(line_of(task), allow_nan=False)
    return {"prompt": prompt, "env_class": ENV_ID, "data_source": source, TASK_COLUMN: written}


def task_of_extras(extras: Mapping[str, Any]) -> Task:
    """Return the task of a row, from the extras that SkyRL passes to an environment."""
    written: object = extras.get(TASK_COLUMN)
    if not isinstance(written, str):
        raise TaskFileError(f"column {TASK_COLUMN!r} of a dataset row does not contain a string", fix=_FIX)
    place = f"column {TASK_COLUMN!r} of the dataset"
    try:
        return task_of(decode_strictly(written, place=place, fix=_FIX))
    except ValidationError as error:
        raise TaskFileError(f"{place}: {first_problem(error)}", fix=_FIX) from error


# pyarrow ships no types.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)


def write_dataset(config: RunConfig, path: Path, *, tasks: Path | None = None) -> int:
    """Write the recipe's training tasks, or those of another file, as Parquet. Return their number.

    If this fails, the file is left unchanged. Raises a ConfigurationError if a task cannot be scored.
    """
    if path.suffix != ".parquet":
        raise BadValueError(
            f"{path} does not end in .parquet, but SkyRL infers the format from the file name",
            fix=f"rename the file to {path.stem}.parquet",
        )
    loaded = load_tasks(tasks or config.tasks.train)
    require_scorable(loaded, config.rewards)
    rows = [row_of(task, source=config.name) for task in loaded]
    sink = _ARROW.BufferOutputStream()
    _PARQUET.write_table(_ARROW.Table.from_pylist(rows), sink)
    try:
        write_file(path, sink.getvalue().to_pybytes())
    except OSError as error:
        raise TaskFileError(f"cannot write {path}: {error.strerror}", fix="choose another path") from error
    return len(rows)
