"""What `mcprl eval` shows: a bar while it plays, then the tables of its report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mcprl.evaluation.comparing import Comparison
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.tables import (
    ReportTable,
    change_tables,
    comparison_table,
    cost_line,
    evaluation_tables,
    lost_line,
)
from mcprl.evaluation.wording import duration, visible
from mcprl.monitoring.printable import printable
from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Verdict

__all__ = ["EvalConsole", "print_comparison", "print_evaluation"]

_SHOWN_ROWS = 12
_LINES = 10  # of progress, where there is no terminal to draw a bar on


class EvalConsole:
    """Follows an evaluation on stderr: what is being started, then how many episodes are done."""

    def __init__(self, episodes: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._started = time.monotonic()
        self._episodes = episodes
        self._done = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=episodes)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._progress.update(self._bar, description=printable(text))
        if not self._console.is_terminal:
            self._say(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._say(f"lost to infrastructure, played again: {outcome}")
            return
        self._done += 1
        self._progress.update(self._bar, completed=self._done)
        every = max(1, self._episodes // _LINES)
        if not self._console.is_terminal and (self._done % every == 0 or self._done == self._episodes):
            self._say(f"{self._done} of {self._episodes} episodes")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        """An evaluation has no steps."""

    def _say(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:7.1f} s  {printable(text)}"
        self._console.print(line, markup=False, soft_wrap=True)


def print_evaluation(
    evaluation: Evaluation, comparison: Comparison | None, folder: Path, console: Console | None = None
) -> None:
    """The tables of an evaluation, and where its report is."""
    console = console or Console(highlight=False)
    figures = evaluation.figures
    about = f"{figures.tasks:,} tasks, {figures.episodes:,} episodes in {duration(evaluation.seconds)}"
    title = f"{visible(evaluation.title)} on {visible(evaluation.suite)}"
    console.print(Text.assemble((title, "bold"), f": {about}"))
    console.print(Text(f"{lost_line(evaluation)} {cost_line(evaluation)}", style="dim"))
    for table in evaluation_tables(evaluation):
        _print_table(console, table)
    if comparison is not None:
        _print_changes(console, comparison)
    console.print()
    console.print(f"Report: {folder / 'report.html'}", markup=False, soft_wrap=True)


def print_comparison(comparison: Comparison, folder: Path | None, console: Console | None = None) -> None:
    """A comparison alone."""
    console = console or Console(highlight=False)
    _print_changes(console, comparison)
    if folder is not None:
        console.print(f"\nReport: {folder / 'report.html'}", markup=False, soft_wrap=True)


def _print_changes(console: Console, comparison: Comparison) -> None:
    console.print()
    console.print(Text(f"before  {visible(comparison.before_name)}", style="dim"))
    console.print(Text(f"after   {visible(comparison.after_name)}", style="dim"))
    for table in (comparison_table(comparison), *change_tables(comparison)):
        _print_table(console, table)


def _print_table(console: Console, table: ReportTable) -> None:
    shown = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(table.columns):
        shown.add_column(Text(column), justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    for row in table.rows[:_SHOWN_ROWS]:
        shown.add_row(*map(Text, row))
    console.print()
    console.print(Text(table.title, style="bold"))
    console.print(shown)
    if len(table.rows) > _SHOWN_ROWS:
        console.print(Text(f"… and {len(table.rows) - _SHOWN_ROWS} more in the report", style="dim"))
    if table.note:
        console.print(Text(table.note, style="dim"))
