"""Task files, read and written. `load_tasks` takes mcprl's own lines and SkyRL's rows, and tells them apart itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mcprl.errors import TaskFileError
from mcprl.records import Message, Task
from mcprl.tasks.lines import first_problem, line_of, task_of
from mcprl.tasks.rows import Row, decode_strictly, read_rows, read_text
from mcprl.tasks.skyrl import digest, is_skyrl_row, task_of_row

__all__ = ["TaskEntry", "TaskFile", "load_preamble", "load_tasks", "read_task_file", "write_tasks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task, the row it was read from, and what the row asks for that no goal can say, so that nobody checks it.

    TaskEntry(task=Task(id="a01", …), row=Row(number=1, …),
              not_checked=("reward_spec.ground_truth.success_criteria.reasoning_quality_threshold",))
    """

    task: Task
    row: Row
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """A task file as it was read. TaskFile(path=Path("train.json"), entries=(TaskEntry(…), …))"""

    path: Path
    entries: tuple[TaskEntry, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(entry.task for entry in self.entries)


def load_tasks(path: Path) -> tuple[Task, ...]:
    """All tasks of a file, in its order. Raises TaskFileError at the first entry that is no task."""
    return read_task_file(path).tasks


def read_task_file(path: Path) -> TaskFile:
    """The tasks of a file together with the rows they come from."""
    entries: list[TaskEntry] = []
    for row in read_rows(path):
        if entries and is_skyrl_row(row.value) != is_skyrl_row(entries[0].row.value):
            raise TaskFileError(
                f"{row.place}: a SkyRL row and a task of mcprl's own form stand in one file", fix="split the file"
            )
        entries.append(_entry_of(row))
    if not entries:
        raise TaskFileError(f"{path} holds no task", fix="write one JSON object a line")
    if is_skyrl_row(entries[0].row.value):
        entries = _with_own_ids(entries)
    _refuse_shared_ids(entries)
    return TaskFile(path=path, entries=tuple(entries))


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks one a line, so that `load_tasks(path)` gives the same. The file is whole or, on an error, as before.

    Raises TaskFileError for a task that no line can say: it checks nothing, or its id is taken.
    """
    lines: list[str] = []
    taken: set[str] = set()
    for task in tasks:
        try:
            lines.append(json.dumps(line_of(task), ensure_ascii=False, allow_nan=False))
        except (ValidationError, ValueError) as error:
            problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
            raise TaskFileError(f"task {task.id!r} cannot be written: {problem}", fix="correct the task") from error
        if task.id in taken:
            raise TaskFileError(f"two tasks to be written have the id {task.id!r}", fix="give one another id")
        taken.add(task.id)
    if not lines:
        raise TaskFileError(f"there are no tasks to write to {path}", fix="give at least one")
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_bytes("".join(f"{line}\n" for line in lines).encode())
        unfinished.replace(path)
    except OSError as error:
        raise TaskFileError(f"cannot write {path}: {error.strerror}", fix="choose another place") from error


def load_preamble(path: Path | None) -> tuple[Message, ...]:
    """The messages that stand before each task's own: a JSON list of chat messages."""
    if path is None:
        return ()
    fix = 'write a JSON list of {"role": …, "content": …} objects'
    value = decode_strictly(read_text(path), place=str(path), fix=fix)
    try:
        return tuple(TypeAdapter(list[Message]).validate_python(value))
    except ValidationError as error:
        raise TaskFileError(f"{path}: {first_problem(error)}", fix=fix) from error


def _entry_of(row: Row) -> TaskEntry:
    try:
        if is_skyrl_row(row.value):
            task, not_checked = task_of_row(row.value)
            return TaskEntry(task=task, row=row, not_checked=not_checked)
        return TaskEntry(task=task_of(row.value), row=row)
    except ValidationError as error:
        raise TaskFileError(f"{row.place}: {first_problem(error)}", fix="correct that field") from error


def _with_own_ids(entries: Sequence[TaskEntry]) -> list[TaskEntry]:
    """SkyRL's rows may share an id. Those that do get a suffix from what they say, so their order changes no id."""
    shared = Counter(entry.task.id for entry in entries)
    copies: Counter[str] = Counter()
    result: list[TaskEntry] = []
    for entry in entries:
        own = entry.task.id
        if shared[own] > 1:
            own = f"{own}-{digest(entry.row.value)}"
            copies[own] += 1
            # Only copies of one row, in which nothing differs, are still alike here.
            own += f"-{copies[own]}" if copies[own] > 1 else ""
        result.append(replace(entry, task=replace(entry.task, id=own)))
    return result


def _refuse_shared_ids(entries: Iterable[TaskEntry]) -> None:
    taken: set[str] = set()
    for entry in entries:
        if entry.task.id in taken:
            raise TaskFileError(
                f"{entry.row.place}: a second task has the id {entry.task.id!r}", fix="give it another id"
            )
        taken.add(entry.task.id)
