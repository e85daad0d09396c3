"""A task in a row of SkyRL's dataset: the columns that `write_dataset` writes and `McpTextEnv` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mcprl.errors import TaskFileError
from mcprl.records import Task
from mcprl.tasks.lines import first_problem, line_of, task_of
from mcprl.tasks.rows import decode_strictly

__all__ = ["ENV_ID", "TASK_COLUMN", "row_of", "task_of_extras"]

ENV_ID = "mcprl"
"""What stands in `env_class`."""
TASK_COLUMN = "mcprl_task"
"""The column with the task: JSON as text, since the tables of Parquet would give every task the fields of all."""
_FIX = "write the dataset with mcprl.skyrl_gym.write_dataset"


def row_of(task: Task, *, source: str) -> dict[str, Any]:
    """A row. Its prompt is the task's own; the preamble and the tools are added where it is played.

    {"prompt": [{"role": "user", "content": "Which time zone is Ana's office in?"}], "env_class": "mcprl",
     "data_source": "hello-cpu", "mcprl_task": '{"id": "zone-of-ana", …}'}
    """
    prompt = [{"role": message["role"], "content": message["content"]} for message in task.prompt]
    # ASCII: Parquet takes no half of a surrogate pair.
    written = json.dumps(line_of(task), allow_nan=False)
    return {"prompt": prompt, "env_class": ENV_ID, "data_source": source, TASK_COLUMN: written}


def task_of_extras(extras: Mapping[str, Any]) -> Task:
    """The task of a row, out of what SkyRL hands to an environment."""
    written: object = extras.get(TASK_COLUMN)
    if not isinstance(written, str):
        raise TaskFileError(f"a row of the dataset has no text in its column {TASK_COLUMN!r}", fix=_FIX)
    place = f"column {TASK_COLUMN!r} of the dataset"
    try:
        return task_of(decode_strictly(written, place=place, fix=_FIX))
    except ValidationError as error:
        raise TaskFileError(f"{place}: {first_problem(error)}", fix=_FIX) from error
