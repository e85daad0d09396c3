"""Reads and writes task files. `load_tasks` detects whether a file has lines in mcprl's own format or SkyRL rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from mcprl import bounds
from mcprl.errors import TaskFileError
from mcprl.records import Message, Task
from mcprl.tasks.formats import digest, first_problem, is_skyrl_row, line_of, task_of, task_of_row

_SHOWN = 5  # problems in one error
_SPACE = " \t\n\r"
# In JSON, a lone surrogate can only be written as an escape.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entry of a task file: a line, or an item of a list. `number` counts from 1. `value` is the decoded JSON.

    Row(file=Path("train.json"), number=3, in_list=True, value={"prompt": […], "env_class": "…", …})
    """

    file: Path
    number: int
    value: Any
    in_list: bool = False

    @property
    def place(self) -> str:
        """Return the place for error messages: `tasks.jsonl:3`, or `train.json: row 3`."""
        return f"{self.file}: row {self.number}" if self.in_list else f"{self.file}:{self.number}"

    @property
    def label(self) -> str:
        """Return the place for tables: `line 3` or `row 3`."""
        return f"{'row' if self.in_list else 'line'} {self.number}"


def read_text(path: Path) -> str:
    """Read a file. Raises TaskFileError if it cannot be read."""
    try:
        return bounds.read_text(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it {error}"
        raise TaskFileError(f"cannot read {path}: {reason}", fix="correct the path") from error


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the entries of a file in order. Raises TaskFileError at the first entry that is not JSON."""
    text = read_text(path)
    start = _skip_space(text, 0)
    if text.startswith("[", start):
        yield from _rows_of_list(path, text, start + 1)
        return
    # Not splitlines: it also splits at U+2028 and other characters that may occur in a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            value = decode_strictly(line.strip(_SPACE), place=f"{path}:{number}", fix="write one JSON object per line")
            yield Row(file=path, number=number, value=value)


def decode_strictly(text: str, *, place: str, fix: str) -> Any:
    """Decode a string that must be one JSON value. Raises a TaskFileError whose message begins with `place`."""
    value, end = _decode(text, 0, place, fix)
    if _skip_space(text, end) != len(text):
        raise TaskFileError(f"{place}: not JSON (there is text after the value)", fix=fix)
    return value


def _rows_of_list(path: Path, text: str, position: int) -> Iterator[Row]:
    """Decode the items of a list one by one, so that an error names its row."""
    fix = "correct the JSON list at this position"
    number = 0
    position = _skip_space(text, position)
    while not text.startswith("]", position):
        number += 1
        if number > 1:
            if not text.startswith(",", position):
                raise TaskFileError(f"{path}: row {number}: not JSON (the comma before this row is missing)", fix=fix)
            position = _skip_space(text, position + 1)
        value, position = _decode(text, position, f"{path}: row {number}", fix)
        yield Row(file=path, number=number, value=value, in_list=True)
        position = _skip_space(text, position)
    if _skip_space(text, position + 1) != len(text):
        raise TaskFileError(f"{path}: not JSON (there is text after the list)", fix=fix)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _decode(text: str, position: int, place: str, fix: str) -> tuple[Any, int]:
    try:
        value, end = bounds.decode_json(text, _DECODER, position)
        _refuse_surrogates(value, text[position:end])
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{place}: not JSON ({error.msg})", fix=fix) from error
    except _RefusedError as error:
        raise TaskFileError(f"{place}: {error}", fix="correct the JSON at this position") from error
    except bounds.OverLimitError as error:
        raise TaskFileError(f"{place}: it {error}", fix="correct the JSON at this position") from error
    except ValueError as error:
        # Python's decoder rejects numbers with thousands of digits.
        raise TaskFileError(
            f"{place}: a number has too many digits", fix="correct the JSON at this position"
        ) from error
    return value, end


class _RefusedError(ValueError):
    """JSON that Python's decoder accepts, but that is ambiguous or not standard."""


def _refuse_surrogates(value: Any, text: str) -> None:
    if _SURROGATE.search(text) is None:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _RefusedError("a string contains a lone surrogate") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _RefusedError(f"the key {twice!r} appears twice in one object")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """A task and the row it was read from. `not_checked` lists the row's requirements that a goal cannot express.

    TaskEntry(task=Task(id="a01", …), row=Row(number=1, …),
              not_checked=("reward_spec.ground_truth.success_criteria.reasoning_quality_threshold",))
    """

    task: Task
    row: Row
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFile:
    """The content of a task file. TaskFile(path=Path("train.json"), entries=(TaskEntry(…), …))"""

    path: Path
    entries: tuple[TaskEntry, ...]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(entry.task for entry in self.entries)


def load_tasks(path: Path) -> tuple[Task, ...]:
    """Load the tasks of a file in order. Raises TaskFileError if an entry is not a task."""
    return read_task_file(path).tasks


def read_task_file(path: Path) -> TaskFile:
    """Load the tasks of a file together with their rows."""
    entries: list[TaskEntry] = []
    problems: list[str] = []
    for row in read_rows(path):
        if entries and is_skyrl_row(row.value) != is_skyrl_row(entries[0].row.value):
            raise TaskFileError(
                f"{row.place}: the file mixes SkyRL rows and tasks in mcprl's own format", fix="split the file"
            )
        try:
            entries.append(_entry_of(row, path.absolute().parent))
        except ValidationError as error:
            problems.append(f"{row.place}: {first_problem(error)}")
        if len(problems) == _SHOWN:
            break
    if problems:
        fix = "correct this field" if len(problems) == 1 else "correct these fields"
        raise TaskFileError("; ".join(problems), fix=fix)
    if not entries:
        raise TaskFileError(f"{path} has no tasks", fix="write one JSON object per line")
    if is_skyrl_row(entries[0].row.value):
        entries = with_own_ids(entries)
    _refuse_shared_ids(entries)
    return TaskFile(path=path, entries=tuple(entries))


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks, one per line, so that `load_tasks(path)` returns equal tasks. On an error, the file is unchanged.

    Raises TaskFileError for a task that cannot be written, because it checks nothing or its id is already used.
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
            raise TaskFileError(
                f"two of the tasks to be written have the id {task.id!r}", fix="change the id of one of them"
            )
        taken.add(task.id)
    if not lines:
        raise TaskFileError(f"the list of tasks to write to {path} is empty", fix="pass at least one task")
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        unfinished.write_bytes("".join(f"{line}\n" for line in lines).encode())
        unfinished.replace(path)
    except OSError as error:
        raise TaskFileError(f"cannot write {path}: {error.strerror}", fix="choose another path") from error


def load_preamble(path: Path | None) -> tuple[Message, ...]:
    """Load a JSON list of chat messages, which precede each task's prompt. Without a path, there are none."""
    if path is None:
        return ()
    fix = 'write a JSON list of {"role": …, "content": …} objects'
    value = decode_strictly(read_text(path), place=str(path), fix=fix)
    try:
        return tuple(TypeAdapter(list[Message]).validate_python(value))
    except ValidationError as error:
        raise TaskFileError(f"{path}: {first_problem(error)}", fix=fix) from error


def _entry_of(row: Row, folder: Path) -> TaskEntry:
    if is_skyrl_row(row.value):
        task, not_checked = task_of_row(row.value)
        return TaskEntry(task=task, row=row, not_checked=not_checked)
    return TaskEntry(task=task_of(row.value, folder), row=row)


def with_own_ids(entries: Sequence[TaskEntry]) -> list[TaskEntry]:
    """Make ids unique: a hash of the content is added to ids that SkyRL rows share, so their order does not matter."""
    shared = Counter(entry.task.id for entry in entries)
    copies: Counter[str] = Counter()
    result: list[TaskEntry] = []
    for entry in entries:
        own = entry.task.id
        if shared[own] > 1:
            own = f"{own}-{digest(entry.row.value)}"
            copies[own] += 1
            # At this point, only identical rows share an id.
            own += f"-{copies[own]}" if copies[own] > 1 else ""
        result.append(replace(entry, task=replace(entry.task, id=own)))
    return result


def _refuse_shared_ids(entries: Iterable[TaskEntry]) -> None:
    taken: set[str] = set()
    for entry in entries:
        if entry.task.id in taken:
            raise TaskFileError(f"{entry.row.place}: an earlier task has the id {entry.task.id!r}", fix="change its id")
        taken.add(entry.task.id)
