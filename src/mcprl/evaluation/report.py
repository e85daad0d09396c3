"""Writes the folder of an evaluation: results, a report, and every trajectory.

outputs/eval-hello-cpu/
  results.json            everything, with a schema version
  report.md               the same as a readable report
  trajectories.parquet    one row per episode
  logs/                   vLLM and the tool servers

A report is a title, a few sentences and a list of tables. It can be shown as Markdown and in the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from mcprl.evaluation.harness import Played
from mcprl.evaluation.results import Comparison, Evaluation, TaskChange, comparison_json, write_evaluation
from mcprl.evaluation.statistics import Estimate, Figures, Spread
from mcprl.files import storage_faults, write_file
from mcprl.runs.trajectories import write_trajectories

EVERY_TASK = "Every task"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table. Its first column is text, the others are numbers. No cell has a line break.

    ReportTable(title="By difficulty", columns=("difficulty", "tasks"), rows=(("easy", "3"),))
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a report has: Report(title="smollm2-135m on market", about=("120 tasks",), tables=(ReportTable(…), …))."""

    title: str
    about: tuple[str, ...]
    tables: tuple[ReportTable, ...]


def evaluation_report(evaluation: Evaluation, comparison: Comparison | None) -> Report:
    figures = evaluation.figures
    sample = "" if figures.tasks == evaluation.tasks_in_suite else f" (sampled from {evaluation.tasks_in_suite:,})"
    took = timedelta(seconds=round(evaluation.seconds))
    tables = [*_comparison_tables(comparison)] if comparison is not None else []
    tables += [_categories(figures), _pass_k(figures), _failures(figures), _tools(figures), _spreads(figures)]
    return Report(
        title=f"{_line(evaluation.title)} on {_line(evaluation.suite)}",
        about=(
            f"{figures.tasks:,} tasks{sample}, {figures.episodes:,} episodes in {took}, {_line(evaluation.started)}.",
            _lost(evaluation),
            _cost(evaluation),
        ),
        tables=(*(table for table in tables if table.rows), _tasks(evaluation)),
    )


def comparison_report(comparison: Comparison) -> Report:
    """Make the report of a comparison of two existing evaluations."""
    before, after = _line(comparison.before_name), _line(comparison.after_name)
    return Report(
        title=f"{after} compared with {before}",
        about=(comparison.verdict,),
        tables=tuple(_comparison_tables(comparison)),
    )


def _categories(figures: Figures) -> ReportTable:
    parts = {_line(name): part for name, part in figures.categories.items()}
    rows = [(n, _amount(p.tasks), _amount(p.episodes), _percent(p.success), _mean(p.reward)) for n, p in parts.items()]
    total = (_amount(figures.tasks), _amount(figures.episodes), _percent(figures.success), _mean(figures.reward))
    title = "difficulty" if set(figures.categories) <= {"easy", "medium", "hard"} else "category"
    return ReportTable(
        title=f"By {title}",
        columns=(title, "tasks", "episodes", "success", "reward"),
        rows=(*(rows if len(rows) > 1 else ()), ("all", *total)),
        note=f"Valid calls: {_share(figures.valid_calls)} of {sum(t.calls for t in figures.tools.values()):,}.",
    )


def _pass_k(figures: Figures) -> ReportTable:
    rows = [(str(k), _percent(figures.pass_at[k]), _percent(figures.pass_all[k])) for k in figures.pass_at]
    return ReportTable(
        title="Over k episodes",
        columns=("k", "pass@k", "pass^k"),
        rows=tuple(rows) if len(rows) > 1 else (),
        note="pass@k: at least one of k episodes solves the task; pass^k: all of them do.",
    )


def _failures(figures: Figures) -> ReportTable:
    failed = sum(figures.failures.values())
    rows = [
        (_line(kind), _amount(count), _share(count / failed), _share(count / figures.episodes))
        for kind, count in figures.failures.items()
    ]
    return ReportTable(
        title="Why episodes failed", columns=("failure", "episodes", "of failures", "of all"), rows=tuple(rows)
    )


def _tools(figures: Figures) -> ReportTable:
    replayed = any(tool.covered is not None for tool in figures.tools.values())
    rows = [
        (
            _line(name),
            _line(tool.server or "–"),
            _amount(tool.calls),
            _share(tool.valid),
            _share(tool.errors),
            *((_share(tool.covered),) if replayed else ()),
            *("–" if s is None else f"{1000 * s:,.1f}" for s in (tool.latency_p50_s, tool.latency_p95_s)),
            _amount(tool.tasks),
            _percent(tool.success),
        )
        for name, tool in figures.tools.items()
    ]
    return ReportTable(
        title="By tool",
        columns=(
            *("tool", "server", "calls", "valid", "errors"),
            *(("covered",) if replayed else ()),
            *("p50 ms", "p95 ms", "tasks", "success"),
        ),
        rows=tuple(rows),
        note="tasks: number of tasks with an episode that called the tool; success: success rate on these tasks."
        + (" covered: share of the calls to replayed tools for which there was a recording." if replayed else ""),
    )


def _spreads(figures: Figures) -> ReportTable:
    def row(name: str, spread: Spread) -> tuple[str, ...]:
        return (name, *map(_amount, (spread.mean, spread.p50, spread.p95, spread.most, spread.total)))

    return ReportTable(
        title="Per episode",
        columns=("", "mean", "p50", "p95", "max", "total"),
        rows=(
            row("turns", figures.turns),
            row("prompt tokens", figures.prompt_tokens),
            row("sampled tokens", figures.sampled_tokens),
            row("seconds", figures.duration_s),
        ),
    )


def _tasks(evaluation: Evaluation) -> ReportTable:
    rows = [
        (_line(task.id), _line(task.category), f"{task.solved} of {task.episodes}", f"{task.reward:.3f}")
        for task in evaluation.tasks
    ]
    return ReportTable(title=EVERY_TASK, columns=("task", "category", "solved", "reward"), rows=tuple(rows))


def _comparison_tables(comparison: Comparison) -> list[ReportTable]:
    """Return tables of success before and after, of changed tasks (biggest change first), and of changed settings."""
    parts = [(_line(name), part) for name, part in comparison.categories.items()] if comparison.categories else []
    rows = [*(parts if len(parts) > 1 else ()), ("all", comparison)]
    skipped = (
        f"; skipped {len(comparison.left_out)} tasks that are not the same in both evaluations"
        if comparison.left_out
        else ""
    )
    settings = [tuple(map(_line, (name, *values))) for name, values in comparison.other_settings.items()]
    tables = [
        ReportTable(
            title="Before and after",
            columns=("", "tasks", "before", "after", "difference"),
            rows=tuple(
                (name, _amount(p.tasks), _share(p.before), _share(p.after), _points(p.difference)) for name, p in rows
            ),
            note=f"Before: {_line(comparison.before_name)}. After: {_line(comparison.after_name)}. "
            f"{comparison.verdict} p = {comparison.p:.3g} (paired, exact); {comparison.won} tasks won, "
            f"{comparison.lost} lost; reward {_interval(comparison.reward_difference, '+z.3f')}{skipped}.",
        ),
        _changes("Tasks won", [change for change in comparison.changes if change.after > change.before]),
        _changes("Tasks lost", [change for change in comparison.changes if change.after < change.before]),
        ReportTable(
            title="Settings that differ",
            columns=("setting", "before", "after"),
            rows=tuple(settings),
            note="The difference may be due to these settings rather than the weights.",
        ),
    ]
    return [table for table in tables if table.rows]


def _changes(title: str, changes: Sequence[TaskChange]) -> ReportTable:
    ordered = sorted(changes, key=lambda change: -abs(change.after - change.before))
    rows = [(_line(c.id), _line(c.category), _share(c.before), _share(c.after)) for c in ordered]
    return ReportTable(title=title, columns=("task", "category", "before", "after"), rows=tuple(rows))


def _lost(evaluation: Evaluation) -> str:
    lost = sum(evaluation.lost.values())
    if not lost:
        return "No attempt was lost to infrastructure faults."
    codes = ", ".join(f"{code} {count}" for code, count in evaluation.lost.items())
    attempts = "1 attempt was" if lost == 1 else f"{lost} attempts were"
    return f"{attempts} lost to infrastructure faults ({codes}) and rerun. No figure includes a lost attempt."


def _cost(evaluation: Evaluation) -> str:
    parts = [
        f"{_line(name)} {server.calls:,} calls" + (f", ${server.usd:,.2f}" if server.usd else "")
        for name, server in evaluation.servers.items()
    ]
    said = f"Tool servers: {'; '.join(parts)}." if parts else "No tool server was used."
    if (use := evaluation.endpoint) is not None:
        money = "" if use.usd is None else f", ${use.usd:,.4f}"
        tokens = f"{use.prompt_tokens:,} prompt tokens, {use.completion_tokens:,} completion tokens"
        said += f" Endpoint: {use.requests:,} requests, {tokens}{money}."
    return f"{said} ${evaluation.usd:,.2f} in total." if evaluation.usd else said


_MAX_CELL_CHARS = 160


def _line(text: str) -> str:
    r"""Make a name fit into a cell: one line, limited length, control and direction characters escaped.

    >>> _line("a\x1b[31m\n\u202eb")
    'a\\x1b[31m \\u202eb'
    """
    line = " ".join(text.split())
    line = line if len(line) <= _MAX_CELL_CHARS else f"{line[: _MAX_CELL_CHARS - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _interval(estimate: Estimate, form: str, scale: float = 1.0, unit: str = "") -> str:
    """Format a figure and its 95% interval, if it has one: `+12.5 points (−3.1 to +28.0)`."""
    value, low, high = (
        "" if x is None else format(scale * x, form).replace("-", "−")
        for x in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value}{unit} ({low} to {high})" if low and high else f"{value}{unit}"


def _percent(estimate: Estimate) -> str:
    return _interval(estimate, "z.1f", 100, "%")


def _points(estimate: Estimate) -> str:
    return _interval(estimate, "+z.1f", 100, " points")


def _mean(estimate: Estimate) -> str:
    return _interval(estimate, "z.3f")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _amount(value: float) -> str:
    """Format a count or a mean of counts: `1,204` or `2.4`."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


_METHOD = (
    "Intervals are 95% intervals, computed over tasks, since episodes of one task are correlated. Shares have Wilson "
    "intervals at the effective number of episodes; rewards have Student's t intervals over task means. Two "
    "evaluations are compared task by task with an exact sign-flip test, which is McNemar's test if each task has "
    "one episode."
)
_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")  # special characters of Markdown, and of HTML inside it


def to_markdown(report: Report) -> str:
    def plain(text: str) -> str:
        return _MARKUP.sub(r"\\\1", text)

    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    blocks = [f"# {plain(report.title)}", plain(" ".join(report.about))]
    for table in report.tables:
        rule = row(["---", *["---:"] * (len(table.columns) - 1)])
        lines = [row(map(plain, table.columns)), rule, *(row(map(plain, cells)) for cells in table.rows)]
        blocks += [f"## {plain(table.title)}", "\n".join(lines), *([plain(table.note)] if table.note else [])]
    return "\n\n".join([*blocks, _METHOD]) + "\n"


def make_folder(outputs: Path, name: str, chosen: Path | None) -> Path:
    """Create and return the folder: `chosen`, or else `eval-NAME` in `outputs`, numbered if that name is taken."""
    with storage_faults(f"creating a folder for the evaluation {name}"):
        if chosen is not None:
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        outputs.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = outputs / (f"eval-{name}" if number == 1 else f"eval-{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                return path


def write_report(folder: Path, played: Played, comparison: Comparison | None) -> None:
    """Write all files of an evaluation. `results.json` is written last: if it exists, the others do too."""
    extra: dict[str, Any] = {} if comparison is None else {"comparison": comparison_json(comparison)}
    write_trajectories(folder / "trajectories.parquet", played.trajectories)
    _write_pages(folder, evaluation_report(played.evaluation, comparison))
    write_evaluation(folder, played.evaluation, extra)


def write_comparison(folder: Path, comparison: Comparison) -> None:
    _write_pages(folder, comparison_report(comparison))
    write_file(folder / "comparison.json", (json.dumps(comparison_json(comparison), indent=1) + "\n").encode())


def _write_pages(folder: Path, report: Report) -> None:
    write_file(folder / "report.md", to_markdown(report).encode())
