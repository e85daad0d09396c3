"""A task chosen by its id on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcprl.records import Task

__all__ = ["choose_task"]


def choose_task(file: Path, wanted: str) -> Task:
    """The task of a file with that id, or its first one for an empty id."""
    from mcprl.errors import BadValueError
    from mcprl.suggestions import did_you_mean
    from mcprl.tasks import load_tasks

    tasks = load_tasks(file)
    by_id = {task.id: task for task in tasks}
    if not wanted:
        return tasks[0]
    if wanted not in by_id:
        hint = did_you_mean(wanted, by_id)
        raise BadValueError(f"{file} has no task {wanted!r}{hint}", fix=f"mcprl tasks show {file} lists them")
    return by_id[wanted]
