"""A task chosen by its id on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcprl.records import Task

__all__ = ["choose_task"]

_MAX_SHOWN = 12


def choose_task(tasks: tuple[Task, ...], wanted: str) -> Task:
    """The task of that id, or the first one for an empty id."""
    from mcprl.errors import BadValueError
    from mcprl.suggestions import did_you_mean

    by_id = {task.id: task for task in tasks}
    if not wanted:
        return tasks[0]
    if wanted not in by_id:
        more = f", … ({len(by_id) - _MAX_SHOWN} more)" if len(by_id) > _MAX_SHOWN else ""
        raise BadValueError(
            f"no task is called {wanted!r}{did_you_mean(wanted, by_id)}",
            fix=f"choose one of {', '.join(list(by_id)[:_MAX_SHOWN])}{more}",
        )
    return by_id[wanted]
