"""What the policy was asked: the tasks of a run's task file, where that is still there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from mcprl.errors import McprlError
from mcprl.records import Message, Task
from mcprl.tasks import load_preamble, load_tasks

__all__ = ["TaskPrompts"]


class TaskPrompts:
    """The tasks of a file by their ids, read anew when the file changes."""

    def __init__(self, task_file: str, preamble_file: str) -> None:
        self._task_file, self._preamble_file = Path(task_file), Path(preamble_file) if preamble_file else None
        self._changed: int | None = None
        self._tasks: dict[str, Task] = {}
        self._preamble: tuple[Message, ...] = ()
        self._why: str | None = None
        self._lock = Lock()

    def get(self, task_id: str) -> tuple[dict[str, Any] | None, str | None]:
        """A task, or None with the reason."""
        with self._lock:
            self._refresh()
            task = self._tasks.get(task_id)
            if task is None:
                return None, self._why or f"the task file {self._task_file} has no task of this id"
            return {
                "prompt": [*self._preamble, *task.prompt],
                "difficulty": task.difficulty.value,
                "tools": None if task.tools is None else list(task.tools),
                "goal": asdict(task.goal),
                "max_turns": task.max_turns,
            }, None

    def _refresh(self) -> None:
        try:
            changed = self._task_file.stat().st_mtime_ns
        except OSError as error:
            self._tasks, self._changed = {}, None
            self._why = f"the task file {self._task_file} cannot be read: {error.strerror}"
            return
        if changed == self._changed:
            return
        self._changed, self._why = changed, None
        try:
            self._tasks = {task.id: task for task in load_tasks(self._task_file)}
            self._preamble = tuple(load_preamble(self._preamble_file)) if self._preamble_file is not None else ()
        except McprlError as error:
            self._tasks, self._why = {}, error.what
