"""The report as one HTML page that needs nothing else: no script, no request, every foreign text escaped.

Task ids, tool names and categories come from files and servers that others wrote. They are escaped wherever they stand,
and the page's own security policy admits neither scripts nor styles besides its one sheet, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from mcprl.evaluation import plots
from mcprl.evaluation.comparing import Comparison
from mcprl.evaluation.markdown import METHOD
from mcprl.evaluation.page_style import STYLE
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.tables import (
    ReportTable,
    change_tables,
    comparison_table,
    cost_line,
    evaluation_tables,
    headlines,
    lost_line,
    task_table,
)
from mcprl.evaluation.wording import duration, visible

__all__ = ["comparison_html", "evaluation_html"]

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def evaluation_html(evaluation: Evaluation, comparison: Comparison | None) -> str:
    """The whole report of an evaluation."""
    title = visible(f"{evaluation.title} on {evaluation.suite}")
    parts = [_header(evaluation, title), _heads(evaluation)]
    if comparison is not None:
        parts += [_comparison_parts(comparison), "<h2>After, in detail</h2>"]
    parts.append(_plots(evaluation))
    parts += [_section(table) for table in evaluation_tables(evaluation)]
    parts.append(_folded(task_table(evaluation)))
    return _page(title, parts)


def comparison_html(comparison: Comparison) -> str:
    """A comparison alone."""
    title = visible(f"{comparison.after_name} against {comparison.before_name}")
    return _page(title, [f"<h1>{escape(title)}</h1>", _comparison_parts(comparison)])


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + f'\n<p class="method">{escape(METHOD)}</p>\n</main></body></html>\n'
    )


def _header(evaluation: Evaluation, title: str) -> str:
    figures = evaluation.figures
    sample = "" if figures.tasks == evaluation.tasks_in_suite else f" (a sample of {evaluation.tasks_in_suite:,})"
    about = (
        f"{figures.tasks:,} tasks{sample}, {figures.episodes:,} episodes in {duration(evaluation.seconds)}, "
        f"{evaluation.started}. {lost_line(evaluation)} {cost_line(evaluation)}"
    )
    return f'<h1>{escape(title)}</h1><p class="sub">{escape(about)}</p>'


def _heads(evaluation: Evaluation) -> str:
    cards = [
        f'<li class="card"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="about">{escape(about)}</div></li>'
        for name, value, about in headlines(evaluation)
    ]
    return f'<ul class="heads">{"".join(cards)}</ul>'


def _plots(evaluation: Evaluation) -> str:
    figures = evaluation.figures
    shown = [("Success", plots.success_by_category(figures))]
    if figures.failures:
        shown.append(("Why episodes failed", plots.failure_kinds(figures.failures, figures.episodes)))
    if len(figures.pass_at) > 1:
        shown.append(("Over k episodes", plots.reliability(figures)))
    shown.append(("Turns", plots.turn_counts(figures.turn_counts)))
    return _grid(shown)


def _comparison_parts(comparison: Comparison) -> str:
    table = comparison_table(comparison)
    before, after = visible(comparison.before_name), visible(comparison.after_name)
    head = (
        f'<h2>Before and after</h2><p class="verdict">{escape(comparison.verdict)}</p>'
        f"<p>Before: {escape(before)}. After: {escape(after)}.</p>"
    )
    grid = _grid(
        [
            ("From before (ring) to after (dot)", plots.category_changes(comparison)),
            ("Tasks: above the line won, below lost", plots.task_changes(comparison)),
        ]
    )
    changes = "".join(_folded(changed) for changed in change_tables(comparison))
    return f"{head}{grid}{_section(table, heading=False)}{changes}"


def _grid(shown: Iterable[tuple[str, str]]) -> str:
    cards = [f'<figure class="card"><h3>{escape(title)}</h3>{plot}</figure>' for title, plot in shown]
    return f'<div class="plots">{"".join(cards)}</div>'


def _section(table: ReportTable, *, heading: bool = True) -> str:
    title = f"<h2>{escape(table.title)}</h2>" if heading else "<h2>In numbers</h2>"
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return f'{title}<div class="card">{_table(table)}{note}</div>'


def _folded(table: ReportTable) -> str:
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    summary = f"{escape(table.title)} ({len(table.rows):,})"
    return f'<details class="card"><summary>{summary}</summary>{_table(table)}{note}</details>'


def _table(table: ReportTable) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    # A table that scrolls must be reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
