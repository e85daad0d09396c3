"""What `mcprl train` shows: a live panel on a terminal, one plain line a step elsewhere, and the closing summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mcprl.config import RunConfig
from mcprl.monitoring.printable import printable
from mcprl.records import LostEpisode, Trajectory
from mcprl.training import Summary

__all__ = ["StageConsole", "TrainingConsole", "print_summary"]

_COLUMNS = ("step", "reward", "success", "valid calls", "KL", "ratio", "lost", "tokens/s", "step time", "ETA")
_SHOWN_STEPS = 12


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

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None: ...


class TrainingConsole:
    """Follows a training run."""

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        self._config = config
        self._console = console or Console(highlight=False)
        self._started = time.monotonic()
        self._rows: list[tuple[str, ...]] = []
        self._step_seconds: list[float] = []
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._episodes_per_step = config.training.tasks_per_step * config.episodes.group_size
        self._bar = self._progress.add_task("starting", total=self._episodes_per_step)
        self._live = Live(self._panel(), console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.update(self._table())
            self._live.stop()

    def stage(self, text: str) -> None:
        self._say(text)
        self._progress.update(self._bar, description=text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._say(f"lost to infrastructure, run again: {outcome.task_id}/{outcome.member} ({outcome.reason})")
            return
        steps = self._config.training.steps
        self._progress.update(self._bar, description=f"step {step + 1}/{steps}: episodes", advance=1)
        if self._progress.tasks[self._bar].finished:
            self._progress.update(self._bar, description=f"step {step + 1}/{steps}: update")

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step_seconds.append(metrics["step_s"])
        row = self._row(step, metrics)
        self._rows.append(row)
        self._progress.reset(self._bar, total=self._episodes_per_step)
        if self._console.is_terminal:
            self._live.update(self._panel())
        else:
            cells = [f"{name} {value}" for name, value in zip(_COLUMNS, row, strict=True)]
            self._console.print("  ".join(cells), soft_wrap=True)

    def _row(self, step: int, metrics: Mapping[str, float]) -> tuple[str, ...]:
        left = self._config.training.steps - step - 1
        mean_s = sum(self._step_seconds) / len(self._step_seconds)
        return (
            f"{step + 1}/{self._config.training.steps}",
            f"{metrics['reward']:+.3f}",
            f"{metrics['success_rate']:.0%}",
            f"{metrics['valid_call_rate']:.0%} of {metrics['calls']:.0f}",
            f"{metrics['kl']:.1e}",
            f"{metrics['ratio_mean']:.4f}",
            f"{metrics['episodes_lost_to_infrastructure']:.0f}",
            f"{metrics['sampled_tokens_per_second']:.0f}",
            _duration(metrics["step_s"]),
            _duration(left * mean_s),
        )

    def _panel(self) -> Group:
        return Group(self._table(), self._progress)

    def _table(self) -> Table:
        table = Table(*_COLUMNS, box=None, header_style="bold", pad_edge=False)
        for row in self._rows[-_SHOWN_STEPS:]:
            table.add_row(*row)
        return table

    def _say(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:7.1f} s  {printable(text)}"
        self._console.print(line, markup=False, soft_wrap=True)


def print_summary(summary: Summary, *, recipe: Path, config: RunConfig, folder: Path) -> None:
    """What the run showed, whether its numbers can be trusted, and what to try next."""
    figures = summary.as_dict()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    lost = figures["episodes_lost_to_infrastructure"]
    groups, wanted = figures["groups_complete"], config.training.steps * config.training.tasks_per_step
    lines = {
        "updates": f"{figures['updates']} in {_duration(figures['seconds'])}: "
        f"{figures['collect_s']:.0f} s to collect, {figures['update_s']:.0f} s to learn",
        "groups complete": f"{groups} of {wanted}",
        "lost to infrastructure": f"{f'{lost} attempts, all run again' if lost else 'nothing'}; "
        f"{figures['server_restarts']} server restarts",
        "reward": f"{figures['reward_first']:+.3f} → {figures['reward_last']:+.3f}",
        "valid calls": f"{figures['valid_call_rate_first']:.0%} → {figures['valid_call_rate_last']:.0%}",
        "token alignment": f"{figures['alignment']:.0%}",
        "sampler vs learner": f"mean |ratio − 1| {figures['parity_ratio_mean_abs_error']:.1e}, "
        f"max |Δlogprob| {figures['parity_logprob_max_abs_error']:.1e}",
        "adapter": str(folder / "adapter"),
    }
    for name, value in lines.items():
        table.add_row(name, escape(value))
    console = Console(highlight=False)
    console.print(table)
    command = shlex.join(["mcprl", "try", str(recipe), "--adapter", str(folder / "adapter")])
    console.print(f"\nNext: {command}", markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
