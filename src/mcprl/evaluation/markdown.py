"""The report as Markdown: for a pull request, a README, or a terminal without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcprl.evaluation.comparing import Comparison
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.tables import (
    ReportTable,
    change_tables,
    comparison_table,
    cost_line,
    evaluation_tables,
    lost_line,
    task_table,
)
from mcprl.evaluation.wording import duration, visible

__all__ = ["METHOD", "comparison_markdown", "evaluation_markdown"]

METHOD = (
    "Intervals hold the truth in 95 of 100 evaluations and count by task, since episodes of one task are alike: for "
    "shares, Wilson's at the effective number of episodes; for rewards, Student's over the tasks' means. Two "
    "evaluations are compared task by task with an exact sign-flip test, which is McNemar's where each task has one "
    "episode."
)
# What Markdown or the HTML inside of it would take for more than a text.
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")


def evaluation_markdown(evaluation: Evaluation, comparison: Comparison | None) -> str:
    """The whole report of an evaluation."""
    figures = evaluation.figures
    part = "" if figures.tasks == evaluation.tasks_in_suite else f" (a sample of {evaluation.tasks_in_suite:,})"
    lines = [
        f"# {_text(visible(evaluation.title))} on {_text(visible(evaluation.suite))}",
        f"{figures.tasks:,} tasks{part}, {figures.episodes:,} episodes in {duration(evaluation.seconds)}, "
        f"{_text(evaluation.started)}. {lost_line(evaluation)} {_text(cost_line(evaluation))}",
    ]
    if comparison is not None:
        lines += _comparison_parts(comparison)
    lines += [_table(table) for table in evaluation_tables(evaluation)]
    lines += [_table(task_table(evaluation)), METHOD]
    return "\n\n".join(lines) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """A comparison alone."""
    names = f"# {_text(visible(comparison.after_name))} against {_text(visible(comparison.before_name))}"
    return "\n\n".join([names, *_comparison_parts(comparison), METHOD]) + "\n"


def _comparison_parts(comparison: Comparison) -> list[str]:
    who = f"Before: {_text(visible(comparison.before_name))}. After: {_text(visible(comparison.after_name))}."
    return [who, _table(comparison_table(comparison)), *(_table(table) for table in change_tables(comparison))]


def _table(table: ReportTable) -> str:
    lines = [_row(table.columns), _row(["---", *["---:"] * (len(table.columns) - 1)], escaped=True)]
    lines += [_row(row) for row in table.rows]
    note = f"\n\n{_text(table.note)}" if table.note else ""
    return f"## {_text(table.title)}\n\n" + "\n".join(lines) + note


def _row(cells: Iterable[str], *, escaped: bool = False) -> str:
    return "| " + " | ".join(cell if escaped else _text(cell) for cell in cells) + " |"


def _text(text: str) -> str:
    return _MARKUP.sub(r"\\\1", text)
