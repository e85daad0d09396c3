"""What `mcprl train` shows: a live panel on a terminal, one plain line a step elsewhere, and the closing summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mcprl.config import RunConfig
from mcprl.monitoring.debug_log import RunDiary
from mcprl.monitoring.durations import duration
from mcprl.monitoring.next_steps import try_command
from mcprl.monitoring.panel import TrainingPanel
from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import verdict_words
from mcprl.monitoring.step_table import COLUMNS, step_row
from mcprl.monitoring.success_table import closing_verdicts, success_table
from mcprl.records import LostEpisode, Trajectory
from mcprl.training.summary import Summary
from mcprl.verdicts import Severity, Verdict

__all__ = ["StageConsole", "TrainingConsole", "print_summary"]


class StageConsole:
    """Says what is being started, and how long it has taken."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("starting")
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def stage(self, text: str) -> None:
        self._status.update(escape(f"{printable(text)} …"))
        if not self._console.is_terminal:
            line = f"{time.monotonic() - self._started:6.1f} s  {printable(text)}"
            self._console.print(line, markup=False, soft_wrap=True)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None: ...

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None: ...


class TrainingConsole:
    """Follows a training run, of which `steps_done` were done before."""

    def __init__(self, config: RunConfig, console: Console | None = None, *, steps_done: int = 0) -> None:
        self._config = config
        self._console = console or Console(highlight=False)
        # A dumb terminal cannot move its cursor: it gets lines, as a file does.
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._started = time.monotonic()
        self._verdicts: Sequence[Verdict] = ()
        self._step_seconds: list[float] = []
        self._diary = RunDiary()
        self._panel = TrainingPanel(config, steps_done=steps_done)
        self._live = Live(self._panel, console=self._console, refresh_per_second=4, vertical_overflow="crop")

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._panel.close()
            self._live.stop()
            self._console.print()

    def stage(self, text: str) -> None:
        self._diary.stage(text)
        self._panel.show_stage(text)
        self._say(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._diary.episode_finished(step, outcome)
        self._panel.add_episode(step, outcome)
        if isinstance(outcome, LostEpisode):
            self._say(f"lost to infrastructure, run again: {outcome}")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        self._diary.step_finished(step, metrics, verdicts)
        self._step_seconds.append(metrics["step_s"])
        steps = self._config.training.steps
        left_s = (steps - step - 1) * sum(self._step_seconds) / len(self._step_seconds)
        row = step_row(f"{step + 1}/{steps}", metrics, verdicts, left_s=left_s)
        self._panel.add_step(step, metrics, verdicts, row)
        known = {(verdict.severity, verdict.name) for verdict in self._verdicts}
        self._verdicts = verdicts
        if self._is_live:
            return
        cells = [f"{name} {value}" for name, value in zip(COLUMNS, row, strict=True)]
        self._console.print("  ".join(cells), soft_wrap=True, markup=False)
        # What stays as it was is named on the line above; its words are said once.
        for verdict in verdicts:
            if verdict.severity is not Severity.OK and (verdict.severity, verdict.name) not in known:
                self._console.print(Text("  ") + verdict_words(verdict), soft_wrap=True)

    def _say(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:7.1f} s  {printable(text)}"
        self._console.print(line, markup=False, soft_wrap=True)


def print_summary(summary: Summary, *, recipe: Path, config: RunConfig, folder: Path) -> None:
    """What the run showed, whether its numbers can be trusted, whether it was well, and what to try next."""
    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in _closing_lines(summary.as_dict(), config, folder).items():
        table.add_row(name, escape(value))
    console.print(table)
    console.print()
    console.print(success_table(summary.success))
    console.print()
    for words in closing_verdicts(summary):
        console.print(words)
    command = try_command(recipe, folder, engine=config.engine, whole_model=config.learner.tuning == "full")
    console.print(f"\nNext: {command}", markup=False, soft_wrap=True)


def _closing_lines(figures: Mapping[str, Any], config: RunConfig, folder: Path) -> dict[str, str]:
    lost, skipped, dropped = (
        figures[name] for name in ("episodes_lost_to_infrastructure", "updates_skipped", "groups_dropped")
    )
    wanted = config.training.steps * config.training.tasks_per_step
    waiting = "to collect" if config.training.pipeline == "sync" else "waiting for episodes"
    lines = {
        "updates": f"{figures['updates']} in {duration(figures['seconds'])}: "
        f"{figures['wait_s']:.0f} s {waiting}, {figures['update_s']:.0f} s to learn"
        + (f"; {skipped} skipped" if skipped else ""),
        # Other tasks are played for groups that are left out, so with these there are more than were to be.
        "groups complete": f"{figures['groups_complete'] - dropped} of {wanted}"
        + (f", and {dropped} without variance that were left out" if dropped else ""),
        "lost to infrastructure": f"{f'{lost} attempts, all run again' if lost else 'nothing'}; "
        f"{figures['server_restarts']} restarts of tool servers, {figures['sampler_restarts']} of the sampler",
        "reward": f"{figures['reward_first']:+.3f} → {figures['reward_last']:+.3f}",
        "valid calls": f"{figures['valid_call_rate_first']:.0%} → {figures['valid_call_rate_last']:.0%}",
    }
    if "parity_ratio_mean_abs_error" in figures:
        lines["sampler vs learner"] = (
            f"mean |ratio − 1| {figures['parity_ratio_mean_abs_error']:.1e}, "
            f"max |Δlogprob| {figures['parity_logprob_max_abs_error']:.1e}"
        )
    kept = "model" if config.learner.tuning == "full" else "adapter"
    return {**lines, kept: str(folder / kept)}
