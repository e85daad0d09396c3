"""The tables of a report, as plain texts: Markdown, HTML and the terminal each show the same ones their own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcprl.evaluation.comparing import Comparison, TaskChange
from mcprl.evaluation.figures import Spread
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.wording import amount, duration, number, percent, points, share, signed, visible

__all__ = [
    "ReportTable",
    "change_tables",
    "comparison_table",
    "cost_line",
    "evaluation_tables",
    "headlines",
    "lost_line",
    "task_table",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table whose first column is text and whose others are figures. No cell has a line break.

    ReportTable(title="By difficulty", columns=("difficulty", "tasks"), rows=(("easy", "3"),), note="")
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def headlines(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """The figures to see first: name, value, and what to know about it."""
    figures = evaluation.figures
    k = max(figures.pass_at)
    found = [("success", share(figures.success.value), _interval(percent(figures.success)))]
    if k > 1:
        found.append((f"pass@{k}", share(figures.pass_at[k].value), _interval(percent(figures.pass_at[k]))))
        found.append((f"pass^{k}", share(figures.pass_all[k].value), _interval(percent(figures.pass_all[k]))))
    reward = number(figures.reward)
    found.append(("reward", reward.split(" ")[0], _interval(reward)))
    found.append(("valid calls", share(figures.valid_calls), f"of {_total_calls(evaluation):,}"))
    found.append(("turns", amount(figures.turns.mean), "an episode"))
    return found


def evaluation_tables(evaluation: Evaluation) -> list[ReportTable]:
    """The tables of one evaluation. Those that would be empty are left out."""
    tables = [_categories(evaluation), _reliability(evaluation), _failures(evaluation), _tools(evaluation)]
    return [table for table in [*tables, _spreads(evaluation)] if table.rows]


def _categories(evaluation: Evaluation) -> ReportTable:
    figures = evaluation.figures
    rows = [
        (visible(name), amount(part.tasks), amount(part.episodes), percent(part.success), number(part.reward))
        for name, part in figures.categories.items()
    ]
    whole = ("all", amount(figures.tasks), amount(figures.episodes), percent(figures.success), number(figures.reward))
    is_by_difficulty = set(figures.categories) <= {"easy", "medium", "hard"}
    return ReportTable(
        title="By difficulty" if is_by_difficulty else "By category",
        columns=("difficulty" if is_by_difficulty else "category", "tasks", "episodes", "success", "reward"),
        rows=(*rows, whole) if len(rows) > 1 else (whole,),
    )


def _reliability(evaluation: Evaluation) -> ReportTable:
    figures = evaluation.figures
    rows = [(str(k), percent(figures.pass_at[k]), percent(figures.pass_all[k])) for k in figures.pass_at]
    return ReportTable(
        title="Over k episodes",
        columns=("k", "pass@k", "pass^k"),
        rows=tuple(rows) if len(rows) > 1 else (),
        note="pass@k: at least one of k episodes solves the task; pass^k: all of them do.",
    )


def _failures(evaluation: Evaluation) -> ReportTable:
    figures = evaluation.figures
    failed = sum(figures.failures.values())
    rows = [
        (visible(kind), amount(count), share(count / failed), share(count / figures.episodes))
        for kind, count in figures.failures.items()
    ]
    return ReportTable(
        title="Why episodes failed", columns=("failure", "episodes", "of failures", "of all"), rows=tuple(rows)
    )


def _tools(evaluation: Evaluation) -> ReportTable:
    rows = [
        (
            visible(name),
            visible(tool.server or "–"),
            amount(tool.calls),
            share(tool.valid),
            share(tool.errors),
            duration(tool.latency_p50_s),
            duration(tool.latency_p95_s),
            amount(tool.tasks),
            percent(tool.success),
        )
        for name, tool in evaluation.figures.tools.items()
    ]
    return ReportTable(
        title="By tool",
        columns=("tool", "server", "calls", "valid", "errors", "p50", "p95", "tasks", "success"),
        rows=tuple(rows),
        note="tasks: those with an episode that called the tool; success: of these tasks.",
    )


def _spreads(evaluation: Evaluation) -> ReportTable:
    figures = evaluation.figures
    rows = [
        _spread("turns", figures.turns),
        _spread("prompt tokens", figures.prompt_tokens),
        _spread("sampled tokens", figures.sampled_tokens),
        (
            "time",
            *(duration(value) for value in (figures.duration_s.mean, figures.duration_s.p50, figures.duration_s.p95)),
            duration(figures.duration_s.most),
            duration(figures.duration_s.total),
        ),
    ]
    return ReportTable(
        title="What an episode takes", columns=("", "mean", "p50", "p95", "most", "in all"), rows=tuple(rows)
    )


def _spread(name: str, spread: Spread) -> tuple[str, ...]:
    values = (spread.mean, spread.p50, spread.p95, spread.most, spread.total)
    return (name, *(amount(value) for value in values))


def task_table(evaluation: Evaluation) -> ReportTable:
    """Every task with what it came to."""
    rows = [
        (visible(task.id), visible(task.category), f"{task.solved} of {task.episodes}", f"{task.reward:.3f}")
        for task in evaluation.tasks
    ]
    return ReportTable(title="Every task", columns=("task", "category", "solved", "reward"), rows=tuple(rows))


def comparison_table(comparison: Comparison) -> ReportTable:
    """Before and after, in all and by category."""
    rows = [
        (visible(name), amount(part.tasks), share(part.before), share(part.after), points(part.difference))
        for name, part in comparison.categories.items()
    ]
    whole = (
        "all",
        amount(comparison.tasks),
        share(comparison.before),
        share(comparison.after),
        points(comparison.difference),
    )
    lost = f"; left out, as the two do not share them: {len(comparison.left_out)} tasks" if comparison.left_out else ""
    return ReportTable(
        title="Before and after",
        columns=("", "tasks", "before", "after", "difference"),
        rows=(*rows, whole) if len(rows) > 1 else (whole,),
        note=f"{comparison.verdict} p = {comparison.p:.3g} (paired, exact); won {comparison.won}, lost "
        f"{comparison.lost} tasks; reward {signed(comparison.reward_difference)}{lost}.",
    )


def change_tables(comparison: Comparison) -> list[ReportTable]:
    """The tasks won and those lost, the greatest changes first, and settings that differ besides the weights."""
    won = sorted((c for c in comparison.changes if c.after > c.before), key=lambda c: c.before - c.after)
    lost = sorted((c for c in comparison.changes if c.after < c.before), key=lambda c: c.after - c.before)
    settings = [
        (visible(name), visible(before), visible(after)) for name, (before, after) in comparison.other_settings.items()
    ]
    tables = [
        _changes("Tasks won", won),
        _changes("Tasks lost", lost),
        ReportTable(
            title="Settings that differ",
            columns=("setting", "before", "after"),
            rows=tuple(settings),
            note="The difference may be theirs, not the weights'.",
        ),
    ]
    return [table for table in tables if table.rows]


def _changes(title: str, changes: Sequence[TaskChange]) -> ReportTable:
    rows = [(visible(c.id), visible(c.category), share(c.before), share(c.after)) for c in changes]
    return ReportTable(title=title, columns=("task", "category", "before", "after"), rows=tuple(rows))


def lost_line(evaluation: Evaluation) -> str:
    """What the infrastructure failed, in a sentence."""
    lost = sum(evaluation.lost.values())
    if not lost:
        return "No attempt was lost to the infrastructure."
    codes = ", ".join(f"{code} {count}" for code, count in evaluation.lost.items())
    attempts = "1 attempt was" if lost == 1 else f"{lost} attempts were"
    return f"{attempts} lost to the infrastructure ({codes}) and played again; figures leave that out."


def cost_line(evaluation: Evaluation) -> str:
    """What the tools were used, in a sentence; money where a price is set."""
    if not evaluation.servers:
        return "No tool server was used."
    parts = [
        f"{visible(name)} {server.calls:,} calls" + (f", ${server.usd:,.2f}" if server.usd else "")
        for name, server in evaluation.servers.items()
    ]
    money = f"; ${evaluation.usd:,.2f} in all" if evaluation.usd else ""
    return f"Tool servers: {'; '.join(parts)}{money}."


def _interval(text: str) -> str:
    """The part of `42.0% (31.2–54.0)` in parentheses."""
    inside = text.partition("(")[2].rstrip(")")
    return f"95%: {inside}" if inside else "one task: no interval"


def _total_calls(evaluation: Evaluation) -> int:
    return sum(tool.calls for tool in evaluation.figures.tools.values())
