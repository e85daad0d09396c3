"""What `mcprl train` shows: a live panel on a terminal, one plain line a step elsewhere, and the closing summary."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mcprl.config import RunConfig
from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import verdict_mark, verdict_words
from mcprl.monitoring.success_table import closing_verdicts, success_table
from mcprl.records import LostEpisode, Trajectory
from mcprl.training.summary import Summary
from mcprl.verdicts import Severity, Verdict

__all__ = ["StageConsole", "TrainingConsole", "print_summary"]

_COLUMNS = ("step", "reward", "success", "valid calls", "KL", "ratio", "lost", "tokens/s", "step time", "ETA", "health")
_SHOWN_STEPS = 12
_GAP = 2
# A narrow terminal does without these, in this order; what is wrong with them is told by health.
_FIRST_TO_GO = ("tokens/s", "ratio", "lost", "step time", "valid calls")


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
    """Follows a training run."""

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        self._config = config
        self._console = console or Console(highlight=False)
        self._started = time.monotonic()
        self._rows: list[tuple[str | Text, ...]] = []
        self._verdicts: Sequence[Verdict] = ()
        self._step_seconds: list[float] = []
        self._finished = Counter[int]()  # episodes of each step that is not done
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
            self._live.update(Group(*self._history()))
            self._live.stop()

    def stage(self, text: str) -> None:
        self._say(text)
        self._progress.update(self._bar, description=text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._say(f"lost to infrastructure, run again: {outcome.task_id}/{outcome.member} ({outcome.reason})")
            return
        self._finished[step] += 1
        # With an asynchronous pipeline, episodes of coming steps finish too: the bar is that of the first one.
        self._show_episodes(min(self._finished))

    def _show_episodes(self, step: int) -> None:
        finished = self._finished[step]
        doing = "episodes" if finished < self._episodes_per_step else "update"
        description = f"step {step + 1}/{self._config.training.steps}: {doing}"
        self._progress.update(self._bar, description=description, completed=finished)

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        self._step_seconds.append(metrics["step_s"])
        row = (*self._figures(step, metrics), verdict_mark(verdicts))
        self._rows.append(row)
        known = {(verdict.severity, verdict.name) for verdict in self._verdicts}
        self._verdicts = verdicts
        del self._finished[step]
        self._progress.reset(self._bar, total=self._episodes_per_step)
        self._show_episodes(step + 1)
        if self._console.is_terminal:
            self._live.update(self._panel())
            return
        cells = [f"{name} {value}" for name, value in zip(_COLUMNS, row, strict=True)]
        self._console.print("  ".join(cells), soft_wrap=True, markup=False)
        # What stays as it was is named on the line above; its words are said once.
        for verdict in verdicts:
            if verdict.severity is not Severity.OK and (verdict.severity, verdict.name) not in known:
                self._console.print(Text("  ") + verdict_words(verdict), soft_wrap=True)

    def _figures(self, step: int, metrics: Mapping[str, float]) -> tuple[str, ...]:
        left = self._config.training.steps - step - 1
        mean_s = sum(self._step_seconds) / len(self._step_seconds)

        def of_update(name: str, form: str) -> str:
            # An update that was skipped has no such figure.
            return format(metrics[name], form) if name in metrics else "–"

        return (
            f"{step + 1}/{self._config.training.steps}",
            f"{metrics['reward']:+.3f}",
            f"{metrics['success_rate']:.0%}",
            f"{metrics['valid_call_rate']:.0%} of {metrics['calls']:.0f}",
            of_update("kl", ".1e"),
            of_update("ratio_mean", ".4f"),
            f"{metrics['episodes_lost_to_infrastructure']:.0f}",
            f"{metrics['sampled_tokens_per_second']:.0f}",
            _duration(metrics["step_s"]),
            _duration(left * mean_s),
        )

    def _panel(self) -> Group:
        return Group(*self._history(), self._progress)

    def _history(self) -> list[RenderableType]:
        """The last steps, and the worst that the last one showed, in words."""
        if not self._verdicts or self._verdicts[0].severity is Severity.OK:
            return [self._table()]
        return [self._table(), verdict_words(self._verdicts[0])]

    def _table(self) -> Table:
        """The last steps, with as many columns as the terminal is wide for."""
        rows = [tuple(map(str, row)) for row in self._rows[-_SHOWN_STEPS:]]
        widths = {name: max(map(len, column)) for name, *column in zip(_COLUMNS, _COLUMNS, *rows, strict=True)}
        kept = dict(widths)
        for name in _FIRST_TO_GO:
            if sum(kept.values()) + _GAP * (len(kept) - 1) > self._console.width:
                del kept[name]
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for name in kept:
            table.add_column(name, no_wrap=True)
        for row in self._rows[-_SHOWN_STEPS:]:
            table.add_row(*(cell for name, cell in zip(_COLUMNS, row, strict=True) if name in kept))
        return table

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
    option = ["--adapter", str(folder / "adapter")]
    if config.engine == "skyrl":  # whose server samples only from what it saved itself
        option += ["--set", "engine=torch"]
    if config.learner.tuning == "full":
        option = ["--set", f"model.path={folder.absolute() / 'model'}"]
    command = shlex.join(["mcprl", "try", str(recipe), *option])
    console.print(f"\nNext: {command}", markup=False, soft_wrap=True)


def _closing_lines(figures: Mapping[str, Any], config: RunConfig, folder: Path) -> dict[str, str]:
    lost, skipped, dropped = (
        figures[name] for name in ("episodes_lost_to_infrastructure", "updates_skipped", "groups_dropped")
    )
    wanted = config.training.steps * config.training.tasks_per_step
    waiting = "to collect" if config.training.pipeline == "sync" else "waiting for episodes"
    lines = {
        "updates": f"{figures['updates']} in {_duration(figures['seconds'])}: "
        f"{figures['wait_s']:.0f} s {waiting}, {figures['update_s']:.0f} s to learn"
        + (f"; {skipped} skipped" if skipped else ""),
        # Other tasks are played for groups that are left out, so with these there are more than were to be.
        "groups complete": f"{figures['groups_complete'] - dropped} of {wanted}"
        + (f", and {dropped} without variance that were left out" if dropped else ""),
        "lost to infrastructure": f"{f'{lost} attempts, all run again' if lost else 'nothing'}; "
        f"{figures['server_restarts']} server restarts",
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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
