"""What `mcprl runs` shows: a list of runs, where one of them stands, and how several compare.

All words from a run's files are Text objects, never markup, and pass through `printable`. Print with `crop=False`:
commands to be copied stay one line, however long.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from mcprl.monitoring.next_steps import try_command
from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import verdict_words
from mcprl.monitoring.sparkline import sparkline
from mcprl.monitoring.success_table import success_table
from mcprl.training.checkpoints import Checkpoint, Damaged
from mcprl.training.past_runs import RECENT_STEPS, PastRun, RunStatus
from mcprl.training.success import success_metrics

__all__ = [
    "RunComparison",
    "RunDetails",
    "RunList",
    "cautions",
    "differing_settings",
    "next_command",
    "plot_lines",
    "sparkline",
]

_GAP = (0, 2, 0, 0)
_SPARK_WIDTHS = range(6, 25)
_SYMBOLS = "ox+*#@%"
_SEVERAL = "&"
_PLOT_WIDTH, _PLOT_HEIGHT = 80, 12
_MIN_RUN_WIDTH = 14
_STATE_STYLES = {
    RunStatus.RUNNING: "cyan",
    RunStatus.FINISHED: "green",
    RunStatus.STOPPED: "yellow",
    RunStatus.FAILED_TO_START: "red",
    RunStatus.UNREADABLE: "bold red",
}
_FIGURES = {
    "steps": ("steps", ".0f"),
    "reward_first": ("reward, first step", "+.3f"),
    "reward_best": ("reward, best step", "+.3f"),
    "reward_last": ("reward, last step", "+.3f"),
    "reward_recent": (f"reward, mean of last {RECENT_STEPS}", "+.3f"),
    "success_recent": (f"success, mean of last {RECENT_STEPS}", ".0%"),
    "valid_calls_recent": (f"valid calls, mean of last {RECENT_STEPS}", ".0%"),
    "kl_mean": ("KL a token, mean", ".1e"),
    "step_s_mean": ("seconds a step", ".1f"),
    "tokens_per_s": ("sampled tokens a second", ".0f"),
    "episodes_lost": ("episodes lost, run again", ".0f"),
    "updates_skipped": ("updates skipped", ".0f"),
}


def plot_lines(curves: Mapping[str, Sequence[tuple[int, float]]]) -> list[str]:
    """Reward over steps in plain characters, one symbol a run: {"o": [(1, 0.1), (2, 0.3)]}. Empty without a point."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    low, high = min(reward for _, reward in points), max(reward for _, reward in points)
    if low == high:
        low, high = low - 0.5, high + 0.5
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    labels = [f"{high - row * (high - low) / (_PLOT_HEIGHT - 1):+.3f}" for row in range(_PLOT_HEIGHT)]
    margin = max(map(len, labels)) + 2
    width = _PLOT_WIDTH - margin - 1
    cells = [[" "] * width for _ in labels]
    for symbol, curve in curves.items():
        for step, reward in curve:
            column = round((step - first) / max(1, last - first) * (width - 1))
            row = round((high - reward) / (high - low) * (_PLOT_HEIGHT - 1))
            cells[row][column] = symbol if cells[row][column] in (" ", symbol) else _SEVERAL
    lines = ["reward"]
    for row, (label, line) in enumerate(zip(labels, cells, strict=True)):
        shown = f"{label} +" if row in (0, _PLOT_HEIGHT // 2, _PLOT_HEIGHT - 1) else "|"
        lines.append(f"{shown:>{margin}}{''.join(line)}".rstrip())
    lines.append(f"{'+':>{margin}}{'-' * width}")
    ends = str(first), str(last) if last > first else ""
    lines.append(f"{'':{margin}}{ends[0]}{'step':^{width - len(ends[0]) - len(ends[1])}}{ends[1]}".rstrip())
    return lines


def next_command(run: PastRun) -> str:
    """What to do with a run as it stands, as a command; empty where there is nothing to be done."""
    match run.state:
        case RunStatus.STOPPED | RunStatus.FAILED_TO_START:
            return shlex.join(["mcprl", "resume", str(run.path)])
        case RunStatus.FINISHED:
            return try_command(
                run.path / "config.yaml",
                run.path,
                engine=str(run.config.get("engine", "")),
                whole_model="model" in run.files,
            )
        case _:
            return ""


def differing_settings(runs: Sequence[PastRun]) -> dict[str, list[str]]:
    """The values of each setting that is not the same in all runs, – where a run has no such setting.

    The name of a run is no setting of what it did.
    """
    settings = [run.settings() for run in runs]
    paths = dict.fromkeys(path for each in settings for path in each if path != "name")
    rows = {path: [each.get(path, "–") for each in settings] for path in paths}
    return {path: row for path, row in rows.items() if len(set(row)) > 1}


def cautions(runs: Sequence[PastRun]) -> list[str]:
    """What to know before runs are compared: where they did not do the same."""
    found: list[str] = []
    differing = differing_settings(runs)
    if any(path.startswith("rewards.") for path in differing):
        found.append("the rewards are counted differently, so their heights do not compare")
    if any(path.startswith("tasks.") for path in differing):
        found.append("the tasks differ: one course may be the easier one")
    if "seed" in differing:
        found.append("the seeds differ: a part of every difference is chance")
    if len({run.steps_done for run in runs}) > 1:
        found.append("the numbers of steps differ: compare the curves at the same step")
    return found


class RunList:
    """Runs, a line each; then why some cannot be read, and how to go on with those that stopped."""

    def __init__(self, runs: Sequence[PastRun], now: float | None = None) -> None:
        self._runs = runs
        self._now = time.time() if now is None else now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # The sparkline has what the other columns leave, and goes first.
        natural = console.measure(self._table(0), options=options.update(width=10_000)).maximum
        left = options.max_width - natural - _GAP[1]
        yield self._table(min(left, _SPARK_WIDTHS[-1]) if left >= _SPARK_WIDTHS[0] else 0)
        unreadable = [run for run in self._runs if run.state is RunStatus.UNREADABLE]
        if unreadable:
            yield Text()
        for run in unreadable:
            yield _words(f"{run.name} cannot be read: {run.why}", "red")
        stopped = [run for run in self._runs if run.state is RunStatus.STOPPED]
        if stopped:
            yield Text("\nTo go on with what stopped:")
        for run in stopped:
            yield _command(f"  {next_command(run)}")

    def _table(self, spark_width: int) -> Table:
        table = _table("run", "state")
        for title in ("steps", "reward"):
            table.add_column(title, justify="right", no_wrap=True)
        if spark_width:
            table.add_column("course", no_wrap=True)
        table.add_column("changed", no_wrap=True)
        table.add_column("size", justify="right", no_wrap=True)
        for run in self._runs:
            table.add_row(
                _words(run.name),
                Text(run.state.value, style=_STATE_STYLES[run.state], no_wrap=True),
                _steps(run),
                " → ".join(f"{reward:+.2f}" for reward in (run.rewards[:1] + run.rewards[1:][-1:])) or "–",
                *([Text(sparkline(run.rewards, spark_width))] if spark_width else []),
                _ago(self._now - run.changed),
                decimal(run.size_bytes),
            )
        return table


class RunDetails:
    """Where one run stands, with its checkpoints as they were found when read from end to end."""

    def __init__(self, run: PastRun, checkpoints: Sequence[Checkpoint | Damaged], now: float | None = None) -> None:
        self._run = run
        self._found = checkpoints
        self._now = time.time() if now is None else now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        run = self._run
        yield _words(run.name, "bold") + Text(f"  {run.state.value}", style=_STATE_STYLES[run.state])
        yield from self._standing()
        metrics = success_metrics(run.metrics)
        if metrics:
            yield Text()
            yield success_table(metrics)
        if run.verdicts:
            yield Text(f"\nverdicts on step {run.steps_done}", style="bold")
            yield from map(verdict_words, run.verdicts)
        if self._found:
            yield Text()
            yield self._checkpoints()
        changed = run.changed_settings()
        if changed:
            yield Text()
            table = _table("setting", "other than its default")
            for path, text in changed.items():
                table.add_row(_words(path), _words(text))
            yield table
        yield Text()
        yield self._files()
        if next_command(run):
            yield Text()
            yield _command(f"Next: {next_command(run)}")

    def _standing(self) -> Iterator[RenderableType]:
        run = self._run
        table = Table(box=None, show_header=False, pad_edge=False, padding=_GAP)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in self._lines():
            table.add_row(name, _words(value))
        yield table
        if run.why:
            yield _words(f"cannot be read: {run.why}", "red")

    def _lines(self) -> Iterator[tuple[str, str]]:
        run, rewards = self._run, self._run.rewards
        yield "folder", str(run.path)
        yield "recipe", run.recipe or "–"
        yield "model", run.model or "–"
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
        yield "started", f"{started}, last change {_ago(self._now - run.changed)}"
        if run.pid is not None:
            yield "process", str(run.pid)
        yield "steps", f"{run.steps_done} of {run.steps_wanted if run.steps_wanted is not None else '?'}"
        versions = run.course("weights_version")
        if versions:
            yield "weights", f"version {versions[-1]:.0f}"
        if rewards:
            best, at = max((reward, -step) for step, reward in run.points("reward"))
            yield "reward", f"{rewards[0]:+.3f} → {rewards[-1]:+.3f}, best {best:+.3f} at step {-at}"
            yield "", sparkline(rewards, 48)
        success = run.course("success_rate")
        if success:
            yield "success rate", f"{success[0]:.0%} → {success[-1]:.0%}"
        if run.metrics:
            yield "time", f"{timedelta(seconds=round(run.seconds))}, {run.seconds / len(run.metrics):.1f} s a step"
        if run.journaled:
            yield "journal", f"{run.journaled:,} finished episodes that no checkpoint covers; resuming uses them"

    def _checkpoints(self) -> Table:
        table = _table("", "checkpoint")
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("")
        for seen in self._found:
            if isinstance(seen, Damaged):
                table.add_row(Text("✗", style="bold red"), _words(seen.path.name), "", _words(f"damaged: {seen.why}"))
            else:
                table.add_row(Text("✓", style="green"), _words(seen.path.name), decimal(seen.bytes), "whole")
        return table

    def _files(self) -> Table:
        table = _table("file or folder")
        table.add_column("size", justify="right", no_wrap=True)
        for name, size in self._run.files.items():
            table.add_row(_words(name), decimal(size))
        table.add_row("total", decimal(self._run.size_bytes), style="bold")
        return table


class RunComparison:
    """Runs side by side: settings that differ, figures, reward curves, and what to be careful about."""

    def __init__(self, runs: Sequence[PastRun]) -> None:
        self._runs = runs
        names = Counter(run.name for run in runs)
        # Two runs of one name are told apart by where they are.
        self._titles = [
            f"{symbol} {run.name if names[run.name] == 1 else run.path}"
            for symbol, run in zip(self._symbols(), runs, strict=True)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        beside = max(1, (options.max_width - 26) // _MIN_RUN_WIDTH)
        differing = differing_settings(self._runs)
        measured = [run.figures() for run in self._runs]
        figures = {title: [_figure(each[name], form) for each in measured] for name, (title, form) in _FIGURES.items()}
        if not differing:
            yield Text("The settings are the same.")
        for first, rows in (("setting", differing), ("figure", figures)):
            for start in range(0, len(self._runs) if rows else 0, beside):
                yield self._side_by_side(first, rows, slice(start, start + beside))
                yield Text()
        curves = {symbol: run.points("reward") for symbol, run in zip(self._symbols(), self._runs, strict=True)}
        lines = plot_lines(curves)
        if lines:
            yield Text("\n".join(lines), no_wrap=True, overflow="crop")
            several = [f"{_SEVERAL} several"] if any(_SEVERAL in line for line in lines) else []
            yield _words("   ".join([*self._titles, *several]))
        for caution in cautions(self._runs):
            yield Text(f"Caution: {caution}.", style="yellow")

    def _symbols(self) -> Iterator[str]:
        yield from (_SYMBOLS[i % len(_SYMBOLS)] for i in range(len(self._runs)))

    def _side_by_side(self, first: str, rows: Mapping[str, Sequence[str]], chosen: slice) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=_GAP)
        table.add_column(first, overflow="fold")
        for title in self._titles[chosen]:
            justify = "right" if first == "figure" else "left"
            table.add_column(_words(title), justify=justify, overflow="fold")
        for name, cells in rows.items():
            table.add_row(_words(name), *map(_words, cells[chosen]))
        return table


def _words(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _command(text: str) -> Text:
    """Words to be copied."""
    return Text(printable(text), no_wrap=True, overflow="ignore")


def _table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=_GAP)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _steps(run: PastRun) -> str:
    return f"{run.steps_done}/{run.steps_wanted if run.steps_wanted is not None else '?'}"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _ago(seconds: float) -> str:
    """How long ago, in the largest unit of which it is at least two.

    >>> _ago(200)
    '3 min ago'
    """
    for unit, length_s in (("days", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s:.0f} {unit} ago"
    return "just now"
