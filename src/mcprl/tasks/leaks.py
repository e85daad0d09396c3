"""Tasks that stand twice: within a file, and in two files of which one is to judge what the other taught."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from mcprl.canonical import canonical_json
from mcprl.records import Task
from mcprl.tasks.files import TaskEntry, TaskFile
from mcprl.tasks.lines import line_of

__all__ = ["duplicates", "leaks", "normalised_question"]

_DASHES = re.compile(r"[‐-―−﹘﹣-]")
_QUOTES = re.compile(r"[‘’‚‛“”„‟\"'`]")
_CHECKED = ("answer", "calls", "in_any_order", "min_calls", "state", "rubric", "solution")


def normalised_question(task: Task) -> str:
    """The user's words without what makes no other question of them: case, spacing, kinds of dashes and quotes."""
    text = "\n".join(message["content"] for message in task.prompt if message["role"] == "user")
    plain = unicodedata.normalize("NFKC", _DASHES.sub("-", text)).casefold()
    return " ".join(_QUOTES.sub("'", plain).split()).rstrip(".!? ")


def duplicates(entries: Sequence[TaskEntry]) -> Iterator[tuple[TaskEntry, str]]:
    """The entries that ask what an earlier one asks, each with a sentence that names it."""
    first: dict[str, TaskEntry] = {}
    for entry in entries:
        other = first.setdefault(normalised_question(entry.task), entry)
        if other is not entry:
            yield entry, f"asks the same as {other.task.id} ({other.row.label})"


def leaks(file: TaskFile, other: TaskFile) -> Iterator[tuple[TaskEntry, str]]:
    """The entries of `file` that `other` has too: the same question, the same goal and solution, or only the id."""
    questions = {normalised_question(entry.task): entry for entry in other.entries}
    ids = {entry.task.id for entry in other.entries}
    solutions = {key: entry for entry in other.entries if (key := _goal_and_solution(entry.task)) is not None}
    for entry in file.entries:
        question = questions.get(normalised_question(entry.task))
        solution = solutions.get(_goal_and_solution(entry.task) or "")
        if question is not None:
            yield entry, f"asks the same as {question.task.id} ({other.path.name}, {question.row.label})"
        elif solution is not None:
            yield entry, f"has the goal and solution of {solution.task.id} ({other.path.name}, {solution.row.label})"
        elif entry.task.id in ids:
            yield entry, f"has the id of another task in {other.path.name}"


def _goal_and_solution(task: Task) -> str | None:
    # Without a solution two goals may well be the same: many questions need the same tools.
    if task.solution is None:
        return None
    line = line_of(task)
    return canonical_json({name: line[name] for name in _CHECKED if name in line})
