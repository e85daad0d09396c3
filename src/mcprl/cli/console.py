"""The output of `mcprl train`: a line per step, a progress bar on a terminal, and the summary."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mcprl.cli.printing import (
    STYLES,
    duration,
    facts_table,
    plain_table,
    printable,
    try_command,
    verdict_mark,
    verdict_text,
)
from mcprl.cli.stages import print_timed
from mcprl.config import RunConfig
from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Severity, Verdict

if TYPE_CHECKING:
    from mcprl.runs.summary import SuccessMetric, Summary

COLUMNS = ("step", "reward", "success", "valid calls", "KL", "ratio", "lost", "tokens/s", "step time", "ETA", "health")
SFT_COLUMNS = ("step", "loss", "validation loss", "success", "valid calls", "step time", "ETA", "health")
REMINDER_S = 30
STEP_WORDS = {Severity.OK: "ok", Severity.WARN: "warnings", Severity.BAD: "bad"}


def step_line(
    place: str, metrics: Mapping[str, float], verdicts: Sequence[Verdict], *, left_s: float, columns: Sequence[str]
) -> str:
    """Format a step as one line. `place` is its place in the run, "3/20"; `left_s` is the estimated seconds left."""

    def figure(name: str, form: str) -> str:
        # A skipped update lacks some metrics, and a step without episodes those of episodes.
        return format(metrics[name], form) if name in metrics else "–"

    cells = {
        "step": place,
        "loss": figure("imitation_loss", ".4f"),
        "validation loss": figure("validation_loss", ".4f"),
        "reward": figure("reward", "+.3f"),
        "success": figure("success_rate", ".0%"),
        "valid calls": f"{figure('valid_call_rate', '.0%')} of {figure('calls', '.0f')}" if "calls" in metrics else "–",
        "KL": figure("kl", ".1e"),
        "ratio": figure("ratio_mean", ".4f"),
        "lost": figure("episodes_lost_to_infrastructure", ".0f"),
        "tokens/s": figure("sampled_tokens_per_second", ".0f"),
        "step time": duration(metrics["step_s"]),
        "ETA": duration(left_s),
        "health": verdict_mark(verdicts).plain,
    }
    return "  ".join(f"{name} {cells[name]}" for name in columns)


def success_table(metrics: Sequence[SuccessMetric]) -> Table:
    """Make a table of a run's figures and their targets."""
    table = plain_table("", "success", right=("measured",))
    table.add_column("target", no_wrap=True)
    table.add_column("", style="dim")
    for metric in metrics:
        form = ".2%" if "%" in metric.bar else ".3g"
        mark = Text("✓", style=STYLES[Severity.OK]) if metric.met else Text("✗", style=STYLES[Severity.BAD])
        table.add_row(
            mark if metric.met or metric.due else Text("–"),
            metric.name,
            "–" if metric.value is None else format(metric.value, form),
            metric.bar,
            metric.note if metric.met or metric.due else f"not due yet: {metric.note}",
        )
    return table


def _closing_verdicts(summary: Summary) -> Iterator[Text]:
    """Yield the number of steps that were ok, then the worst verdict in full, then the names of the others."""
    steps = summary.as_dict()["verdicts"]["steps"]
    if not sum(steps.values()):
        return
    counts = [
        Text(f"{steps[severity.value]} {word}", style=STYLES[severity] if steps[severity.value] else "dim")
        for severity, word in STEP_WORDS.items()
    ]
    yield Text.assemble(("health  ", "dim"), Text(", ").join(counts), f" of {sum(steps.values())} steps")
    for place, (count, last, verdict) in enumerate(summary.verdicts):
        name = Text(f"{verdict.severity.value:4} {verdict.name}", style=STYLES[verdict.severity])
        shown = name if place else verdict_text(verdict)
        yield shown + Text(f" ({count} step{'s' if count > 1 else ''}, last: step {last})", style="dim")


_logger = logging.getLogger(__name__)


class _LastingStream:
    """A stream that discards all output after its first failed write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._turn_away(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._turn_away(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _turn_away(self, error: OSError) -> None:
        # Redirect the descriptor itself, because buffered text is written again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        _logger.warning("%s cannot be written (%s): the run continues without it", self._stream.name, error)


@contextmanager
def enduring_output() -> Generator[None]:
    """Inside the block, a failed write to stdout or stderr raises no error.

    Otherwise `mcprl train recipe.yaml | head -1`, a closed terminal or a full disk behind `> log` would end the run.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_enduring(stream) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        sys.stdout, sys.stderr = before


def _enduring(stream: TextIO | None) -> Any:
    return None if stream is None else _LastingStream(stream)  # None if the stream was closed when Python started


class TrainingConsole:
    """Shows the progress of a run that starts after `steps_done` steps. Also appends its lines to the file `log`."""

    def __init__(
        self, config: RunConfig, console: Console | None = None, *, steps_done: int = 0, log: Path | None = None
    ) -> None:
        self._config = config
        self._columns = COLUMNS if config.sft is None else SFT_COLUMNS
        self._console = console or Console(highlight=False)
        self._log = None if log is None else log.open("a", encoding="utf-8", buffering=1)
        logs = [] if self._log is None else [Console(file=_enduring(self._log), highlight=False, color_system=None)]
        self._consoles = [self._console, *logs]
        self._started = time.monotonic()
        self._step_seconds: list[float] = []
        self._finished = Counter[int]()  # unfinished step → number of finished episodes
        self._verdicts: Sequence[Verdict] = ()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            # A dumb terminal cannot move its cursor, so it gets lines only, like a file.
            disable=not self._console.is_terminal or self._console.is_dumb_terminal,
        )
        self._bar = self._progress.add_task("starting", total=config.training.steps, completed=steps_done)
        self._ended = threading.Event()
        self._reminder = threading.Thread(target=self._remind, daemon=True)

    def __enter__(self) -> Self:
        self._progress.start()
        if self._progress.disable:
            self._reminder.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._progress.stop()
        self._ended.set()
        if self._log is not None:
            if kind is not None:
                print_timed(self._consoles[-1], self._started, f"ended by {kind.__name__}: {error}")
            self._log.close()

    def stage(self, text: str) -> None:
        self._progress.update(self._bar, description=printable(text))
        self._print_timed(text)

    def _remind(self) -> None:
        """Print now and then what the run is doing, for output without a progress bar."""
        while not self._ended.wait(REMINDER_S):
            print_timed(self._console, self._started, self._progress.tasks[self._bar].description)

    def _print_timed(self, text: str) -> None:
        for console in self._consoles:
            print_timed(console, self._started, text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._print_timed(f"episode lost to infrastructure, will be rerun: {outcome}")
            return
        self._finished[step] += 1
        # With an asynchronous pipeline, episodes of later steps finish too. The bar shows the first unfinished step.
        first, total = min(self._finished), self._config.training.tasks_per_step * self._config.episodes.group_size
        finished = self._finished[first]
        if step > first:
            return
        doing = f"{finished}/{total} episodes" if finished < total else "update, publish"
        self._progress.update(self._bar, description=f"step {first + 1}: {doing}")

    def pack_finished(self, done: int, total: int) -> None:
        step = int(self._progress.tasks[self._bar].completed) + 1
        self._progress.update(self._bar, description=f"step {step}: update, {done}/{total} packs")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        del self._finished[step]
        self._step_seconds.append(metrics["step_s"])
        steps, mean_s = self._config.training.steps, sum(self._step_seconds) / len(self._step_seconds)
        self._progress.update(self._bar, description=f"step {step + 2}", completed=step + 1)
        left_s = (steps - step - 1) * mean_s
        line = step_line(f"{step + 1}/{steps}", metrics, verdicts, left_s=left_s, columns=self._columns)
        known = {(verdict.severity, verdict.name) for verdict in self._verdicts}
        self._verdicts = verdicts
        # A verdict that persists is named on the line of its step and printed in full only once.
        new = [v for v in verdicts if v.severity is not Severity.OK and (v.severity, v.name) not in known]
        for console in self._consoles:
            console.print(line, soft_wrap=True, markup=False)
            for verdict in new:
                console.print(Text("  ") + verdict_text(verdict), soft_wrap=True)


def print_summary(summary: Summary, *, config: RunConfig, folder: Path) -> None:
    """Print whether the run learned, whether its numbers can be trusted, its health, and what to try next."""
    console = Console(highlight=False)
    console.print(facts_table(list(_closing_facts(summary.as_dict(), config, folder))))
    console.print()
    console.print(success_table(summary.success))
    console.print()
    for line in _closing_verdicts(summary):
        console.print(line)
    command = try_command(folder, engine=config.engine, whole_model=config.learner.tuning == "full")
    console.print(f"\nNext: {command}", markup=False, soft_wrap=True)


def _closing_facts(figures: Mapping[str, Any], config: RunConfig, folder: Path) -> Iterator[tuple[str, str]]:
    lost, skipped, dropped = (
        figures[name] for name in ("episodes_lost_to_infrastructure", "updates_skipped", "groups_dropped")
    )
    waiting = "collecting" if not config.training.max_staleness else "waiting for episodes"
    took = f"{figures['wait_s']:.0f} s {waiting}, {figures['update_s']:.0f} s learning"
    rest = f"; {skipped} skipped" if skipped else ""
    yield "updates", f"{figures['updates']} in {duration(figures['seconds'])}: {took}{rest}"
    if "validation_loss_first" in figures:
        yield "validation loss", f"{figures['validation_loss_first']:.4f} → {figures['validation_loss_last']:.4f}"
    # Dropped groups are replaced by groups of other tasks, so there may be more groups than planned.
    wanted = config.training.steps * config.training.tasks_per_step
    rest = f"; {dropped} more were dropped (no variance)" if dropped else ""
    if config.sft is None:
        yield "groups complete", f"{figures['groups_complete'] - dropped} of {wanted}{rest}"
    restarts = f"{figures['server_restarts']} restarts of tool servers, {figures['sampler_restarts']} of the sampler"
    yield "lost to infrastructure", f"{f'{lost} attempts, all rerun' if lost else 'nothing'}; {restarts}"
    if "reward_first" in figures:
        yield "reward", f"{figures['reward_first']:+.3f} → {figures['reward_last']:+.3f}"
        yield "valid calls", f"{figures['valid_call_rate_first']:.0%} → {figures['valid_call_rate_last']:.0%}"
    if "parity_ratio_mean_abs_error" in figures:
        ratio, logprob = figures["parity_ratio_mean_abs_error"], figures["parity_logprob_max_abs_error"]
        yield "sampler vs learner", f"mean |ratio − 1| {ratio:.1e}, max |Δlogprob| {logprob:.1e}"
    kept = "model" if config.learner.tuning == "full" else "adapter"
    yield kept, str(folder / kept)
