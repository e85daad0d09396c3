"""What `mcprl tasks` shows: what is wrong with a task file, how its solutions fare, and the tasks themselves.

All words from files are Text objects, never markup, and pass through `printable`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcprl.episodes.gold import Trial
from mcprl.goals import ExpectedText
from mcprl.monitoring.printable import printable
from mcprl.records import Task
from mcprl.redact import SECRETS
from mcprl.tasks.drift import alias_settings
from mcprl.tasks.validation import Report

__all__ = ["is_perfect", "print_gold", "print_report", "print_task", "print_task_list"]

_LISTED = 20


def print_report(console: Console, report: Report) -> None:
    """Figures, problems, drift and what nobody checks, then a verdict in one line."""
    _print_figures(console, report)
    _print_problems(console, report)
    _print_drift(console, report)
    if report.not_checked:
        table = _table("not checked", "rows")
        for what, rows in report.not_checked.items():
            table.add_row(_words(what), f"{rows}")
        console.print(table, "")
    recorded = sum(tool.recorded for tool in report.by_tool)
    found = f"{len(report.problems)} problems, {len(report.drift)} of {recorded} recorded calls drifted"
    verdict = "nothing wrong" if report.fine else found
    console.print(_words(f"{report.file}: {report.tasks} tasks, {verdict}", "green" if report.fine else "bold red"))


def _print_figures(console: Console, report: Report) -> None:
    levels = _table("difficulty", "tasks", "calls needed (mean)", "with a solution")
    for level in report.by_difficulty:
        levels.add_row(level.difficulty, f"{level.tasks}", f"{level.needed_calls:.1f}", f"{level.solved}")
    tools = _table("server", "tool", "offered by tasks", "needed by tasks", "recorded calls", "drifted")
    for tool in report.by_tool:
        drifted = _words(f"{tool.drifted}", "yellow" if tool.drifted else "")
        server = _words(tool.server) if tool.server else _words("none", "red")
        tools.add_row(server, _words(tool.tool), f"{tool.offered}", f"{tool.needed}", f"{tool.recorded}", drifted)
    console.print(levels, "", tools, "", sep="\n")


def _print_problems(console: Console, report: Report) -> None:
    """The same problem of many tasks stands in one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for problem in report.problems:
        alike.setdefault((problem.kind, problem.text), []).append(f"{problem.task_id} ({problem.row})")
    if not alike:
        return
    table = _table("problem", "what", "tasks", "which")
    for (kind, text), places in list(alike.items())[:_LISTED]:
        table.add_row(_words(kind, "red"), _words(text), f"{len(places)}", _words(_few(places)))
    console.print(table)
    if len(alike) > _LISTED:
        console.print(_words(f"… and {len(alike) - _LISTED} more; --json has all", "dim"))
    console.print("")


def _print_drift(console: Console, report: Report) -> None:
    """The calls that drifted in the same way stand together, with all their places: each may need a look."""
    alike: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for call in report.drift:
        mend = "; ".join(map(str, call.mends)) or "none would mend it"
        places = alike.setdefault((call.tool, ", ".join(call.problems), mend), {})
        row = call.row if call.part == "prompt" else f"{call.row}, {call.part}"
        places.setdefault(f"{row}, message", []).append(f"{call.message}")
    most_first = sorted(alike.items(), key=lambda item: -sum(map(len, item[1].values())))
    for (tool, problems, mend), places in most_first:
        times = sum(map(len, places.values()))
        where = "; ".join(f"{row} {', '.join(messages)}" for row, messages in places.items())
        console.print(_words(tool, "bold") + _words(f" {problems}") + _words(f"  {times} ×", "yellow"))
        console.print(Padding(_words(f"alias: {mend}", "cyan"), (0, 0, 0, 2), expand=False))
        console.print(Padding(_words(where, "dim"), (0, 0, 1, 2), expand=False))
    settings = _alias_yaml(report)
    if settings:
        console.print("For the recipe:", "", _words(settings), sep="\n", soft_wrap=True)


def _alias_yaml(report: Report) -> str:
    settings = alias_settings(report.drift)
    if not settings:
        return ""
    return yaml.safe_dump({"servers": {"settings": settings}}, sort_keys=False, default_flow_style=None)


def is_perfect(trial: Trial) -> bool:
    """Whether a solution is one: full reward, and no call of it was refused."""
    return trial.reward >= 1.0 and not trial.faults


def print_gold(console: Console, trials: Sequence[Trial], tasks: int) -> None:
    """The solutions that do not score in full, and how many do."""
    wrong = [trial for trial in trials if not is_perfect(trial)]
    if wrong:
        table = _table("solution of", "reward", "parts", "faults")
        for trial in wrong:
            parts = ", ".join(f"{name} {value:g}" for name, value in trial.parts.items())
            table.add_row(
                _words(trial.task_id), f"{trial.reward:g}", _words(parts), _words("; ".join(map(str, trial.faults)))
            )
        console.print(table, "")
    unplayed = tasks - len(trials)
    missing = f"; {unplayed} tasks have none that can be played" if unplayed else ""
    text = f"{len(trials) - len(wrong)} of {len(trials)} solutions score 1.0{missing}"
    console.print(_words(text, "bold red" if wrong else "green"))


def print_task_list(console: Console, tasks: Iterable[Task]) -> None:
    """A line for each task."""
    table = _table("task", "difficulty", "needs", "question")
    for task in tasks:
        needs = ", ".join(dict.fromkeys(call.tool for call in task.goal.calls))
        table.add_row(_words(task.id), task.difficulty, _words(needs), _words(_short(_question(task), 100)))
    console.print(table)


def print_task(console: Console, task: Task) -> None:
    """All that a task says, its solution included."""
    goal = task.goal
    turns = [f"at most {task.max_turns} turns"] if task.max_turns else []
    facts = " · ".join([task.difficulty, *turns, *([task.world] if task.world else [])])
    console.print(_words(task.id, "bold") + _words(f"  {facts}", "dim"))
    for message in task.prompt:
        console.print(_words(f"{message['role']}: ", "bold") + _words(message["content"]), soft_wrap=True)
    states = [f"{_call(state.tool, state.arguments)} says {_all_of(state.texts)}" for state in goal.state]
    in_order = "in any order" if goal.in_any_order else "in this order"
    parts = {
        "tools": [", ".join(task.tools) if task.tools is not None else "all that the servers have"],
        "answer": [_all_of([goal.answer])] if goal.answer is not None else [],
        f"needs, {in_order}": [_call(call.tool, call.arguments) for call in goal.calls],
        "calls that must work": [f"{goal.min_calls}"] if goal.min_calls else [],
        "afterwards": states,
        "rubric": [goal.rubric] if goal.rubric else [],
        "solution": [_call(call.name, call.arguments) for call in task.solution.calls] if task.solution else [],
        "its answer": [task.solution.answer] if task.solution else [],
    }
    for name, lines in parts.items():
        if lines:
            console.print(
                _words(f"{name}:", "bold"), *(_words(f"  {line}") for line in lines), sep="\n", soft_wrap=True
            )


def _call(tool: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return f"{tool}({given})"


def _all_of(texts: Iterable[ExpectedText]) -> str:
    # Goals are small records with telling names: their own form reads well.
    return ", ".join(map(repr, texts))


def _question(task: Task) -> str:
    return " ".join(message["content"] for message in task.prompt if message["role"] == "user")


def _short(text: str, length: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= length else f"{words[: length - 1]}…"


def _few(places: Iterable[str]) -> str:
    listed = list(places)
    return ", ".join(listed[:3]) + (f", … {len(listed) - 3} more" if len(listed) > 3 else "")


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))


def _words(text: str, style: str = "") -> Text:
    """Words from a file: without keys that got into it, and never markup."""
    return Text(printable(SECRETS.redact(text)), style=style)
