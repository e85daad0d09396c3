"""The live panel of `mcprl train`: progress, curves, health, and what the run uses.

The layout is computed on each draw, so the panel fits after the terminal is resized. The most important rows come
first: if the terminal has too few lines, the last rows are cut.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mcprl.cli.printing import STYLES, duration, plain_table, printable, sparkline, verdict_mark, verdict_text
from mcprl.config import RunConfig, ServersConfig
from mcprl.records import LostEpisode, Source, Trajectory
from mcprl.verdicts import Severity, Verdict

COLUMNS = ("step", "reward", "success", "valid calls", "KL", "ratio", "lost", "tokens/s", "step time", "ETA", "health")
SFT_COLUMNS = ("step", "loss", "validation loss", "success", "valid calls", "step time", "ETA", "health")
# A narrow terminal drops these columns, in this order. The health column still reports problems with them.
_FIRST_TO_GO = ("tokens/s", "ratio", "lost", "step time", "valid calls", "KL", "ETA", "success")
STEP_WORDS = {Severity.OK: "ok", Severity.WARN: "warnings", Severity.BAD: "bad"}

StepRow = tuple[str | Text, ...]
"""One cell per column."""


def step_row(
    place: str,
    metrics: Mapping[str, float],
    verdicts: Sequence[Verdict],
    *,
    left_s: float,
    columns: Sequence[str] = COLUMNS,
) -> StepRow:
    """Format a step as a row. `place` is "3/20"; `left_s` is the estimated time left in seconds."""

    def figure(name: str, form: str) -> str:
        # A skipped update lacks some metrics, and a step without episodes those of episodes.
        return format(metrics[name], form) if name in metrics else "–"

    cells: dict[str, str | Text] = {
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
        "health": verdict_mark(verdicts),
    }
    return tuple(cells[name] for name in columns)


def step_table(rows: Sequence[StepRow], width: int, columns: Sequence[str] = COLUMNS) -> Table:
    """Make a table with as many columns as fit."""
    texts = [tuple(map(str, row)) for row in rows]
    kept = {name: max(map(cell_len, column)) + 2 for name, *column in zip(columns, columns, *texts, strict=True)}
    for name in _FIRST_TO_GO:
        if sum(kept.values()) - 2 > width:
            kept.pop(name, None)
    table = plain_table(*kept)
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in kept))
    return table


_NEAR, _NEARLY_ALL = 0.8, 0.95


class ToolUse:
    """Counts calls, failures and lost attempts, and how much of each budget is used.

    It does not see calls of lost episodes, or calls before a run was resumed. The budget that stops the run counts
    those.
    """

    def __init__(self, servers: ServersConfig) -> None:
        self._budgets = {name: settings.budget for name, settings in servers.settings.items()}
        self._delivered = Counter[str]()
        self._lost = Counter[str]()
        self._calls = self._failed = self._cached = 0

    def add(self, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._lost[outcome.code] += 1
            return
        for seen in (seen for turn in outcome.turns for seen in turn.observations):
            self._calls += 1
            self._failed += seen.fault is not None
            self._cached += seen.source in (Source.CACHE, Source.CASSETTE)
            # A call that was rejected before it was sent has no latency.
            if seen.server is not None and seen.source is Source.LIVE and seen.latency_s > 0:
                self._delivered[seen.server] += seen.attempts

    def facts(self) -> Iterator[Text]:
        yield Text(f"{self._calls:,} calls")
        if self._calls:
            yield Text(f"{self._failed / self._calls:.1%} failed")
        if self._cached:
            yield Text(f"{self._cached / self._calls:.0%} from cache or cassette")
        if self._lost:
            (code, _), *_ = self._lost.most_common(1)
            lost = self._lost.total()
            yield Text(f"{lost} attempt{'s' if lost > 1 else ''} lost, most to {printable(code)}", style="yellow")
        for server, budget in self._budgets.items():
            calls, name = self._delivered[server], printable(server)
            if budget.calls is not None:
                yield _used(f"{name} {calls:,}/{budget.calls:,} calls", calls, budget.calls)
            if budget.usd is not None:
                spent = calls * budget.usd_per_call
                yield _used(f"{name} ${spent:,.2f}/${budget.usd:,.2f}", spent, budget.usd)


def _used(text: str, used: float, most: float) -> Text:
    share = used / most if most else 1.0
    return Text(text, style="bold red" if share >= _NEARLY_ALL else "yellow" if share >= _NEAR else "")


_LABEL_WIDTH = 11
_SHOWN_STEPS = 12
# Neighbors have different colors, because blocks of full height touch the blocks above them.
_CURVES = (
    ("loss", "imitation_loss", ".3f", "green"),
    ("validation", "validation_loss", ".3f", "blue"),
    ("reward", "reward", "+.3f", "green"),
    ("success", "success_rate", ".0%", "cyan"),
    ("valid calls", "valid_call_rate", ".0%", "blue"),
    ("KL", "kl", ".1e", "magenta"),
    ("entropy", "entropy", ".2f", "cyan"),
)


class TrainingPanel:
    """The display of a run on a terminal. The console passes events to it; rich draws it."""

    def __init__(self, config: RunConfig, *, steps_done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.columns = COLUMNS if config.sft is None else SFT_COLUMNS
        self._config = config
        self._clock = clock
        self._started = self._step_began = clock()
        self._steps_done = steps_done
        self._stage = "starting"
        self._finished = Counter[int]()  # unfinished step → number of finished episodes
        self._step_seconds: list[float] = []
        self._curves: dict[str, list[float]] = {name: [] for _, name, _, _ in _CURVES}
        self._health = Counter[Severity]()
        self._verdicts: Sequence[Verdict] = ()
        self._metrics: Mapping[str, float] = {}
        self._tools = ToolUse(config.servers)
        self._rows: list[StepRow] = []
        self._is_closed = False

    def show_stage(self, text: str) -> None:
        """Show what the run is doing, until the next episode or step ends."""
        self._stage = printable(text)

    def add_episode(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._tools.add(outcome)
        if isinstance(outcome, Trajectory):
            self._stage = ""
            self._finished[step] += 1

    def add_step(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> StepRow:
        """Add a step. Return its row."""
        self._stage = ""
        self._steps_done = step + 1
        self._step_began = self._clock()
        self._step_seconds.append(metrics["step_s"])
        for name, curve in self._curves.items():
            if name in metrics:
                curve.append(metrics[name])
        self._health[verdicts[0].severity if verdicts else Severity.OK] += 1
        self._verdicts, self._metrics = verdicts, metrics
        place = f"{step + 1}/{self._config.training.steps}"
        self._rows.append(step_row(place, metrics, verdicts, left_s=self._left_s(), columns=self.columns))
        del self._finished[step]
        return self._rows[-1]

    def close(self) -> None:
        """Stop updating the panel. Its last state shows how the run ended."""
        self._is_closed = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # The border's dim style would also apply to the title.
        title = Text(" · ").join(self._title())
        title.stylize("not dim")
        body = Group(self._lines(options.max_width - 4), self._facts())
        shown = Panel(body, title=title, title_align="left", border_style="dim", padding=(0, 1))
        yield shown
        rows = self._rows[-_SHOWN_STEPS:]
        if not self._is_closed:
            # Show the table only if a header and at least two steps fit.
            room = console.height - len(console.render_lines(shown, options.update(height=None))) - 2
            rows = rows[-room:] if room >= 2 else []
        if rows:
            yield step_table(rows, options.max_width, self.columns)

    def _title(self) -> Iterator[Text]:
        yield Text(printable(self._config.name), style="bold")
        yield Text(f"step {self._steps_done}/{self._config.training.steps}")
        yield Text(f"{duration(self._clock() - self._started)} elapsed")
        if self._step_seconds and not self._is_closed:
            yield Text(f"ETA {duration(self._left_s())}")

    def _left_s(self) -> float:
        """Estimate the time left in seconds from the mean of the steps so far."""
        mean_s = sum(self._step_seconds) / len(self._step_seconds)
        left = self._config.training.steps - self._steps_done
        return left * mean_s - (min(self._clock() - self._step_began, mean_s) if left else 0.0)

    def _lines(self, width: int) -> Table:
        """Make the bars and sparklines, each between its label and its figures."""
        rows: list[tuple[str, RenderableType | list[float], str, str]] = [*self._bars()]
        for label, name, form, style in _CURVES:
            if values := self._curves[name]:
                first_last = " → ".join(_figure(value, form) for value in [*values[:1], *values[1:][-1:]])
                rows.append((label, values, first_last, style))
        body = max(1, width - _LABEL_WIDTH - 4 - max(cell_len(figures) for _, _, figures, _ in rows))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", width=_LABEL_WIDTH, no_wrap=True)
        table.add_column(width=body, no_wrap=True)
        table.add_column(no_wrap=True)
        for label, shown, figures, style in rows:
            table.add_row(label, Text(sparkline(shown, body), style) if isinstance(shown, list) else shown, figures)
        return table

    def _bars(self) -> Iterator[tuple[str, RenderableType, str, str]]:
        def bar(done: int, total: int, style: str) -> ProgressBar:
            return ProgressBar(total=total, completed=min(done, total), complete_style=style, finished_style=style)

        steps = self._config.training.steps
        yield "run", bar(self._steps_done, steps, "green"), f"{self._steps_done}/{steps} steps", ""
        if self._is_closed or self._steps_done == steps:
            return
        if self._config.sft is not None:  # its steps have no episodes
            if self._stage:
                yield "now", Text(self._stage, no_wrap=True, overflow="ellipsis"), "", ""
            return
        # With an asynchronous pipeline, episodes of later steps finish too. The bar shows the first unfinished step.
        step = min(self._finished, default=self._steps_done)
        finished, total = self._finished[step], self._config.training.tasks_per_step * self._config.episodes.group_size
        doing = f"{finished}/{total} episodes" if finished < total else "update, publish"
        yield f"step {step + 1}", bar(finished, total, "cyan"), doing, ""
        ahead = self._finished.total() - finished
        if ahead:
            yield "ahead", "", f"{ahead} episodes", ""
        if self._stage:
            yield "now", Text(self._stage, no_wrap=True, overflow="ellipsis"), "", ""

    def _facts(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", width=_LABEL_WIDTH, no_wrap=True)
        table.add_column(overflow="fold")
        counts = [Text(f"{n} {STEP_WORDS[s]}", STYLES[s]) for s in STEP_WORDS if (n := self._health[s])]
        is_well = not self._verdicts or self._verdicts[0].severity is Severity.OK
        for label, texts in (
            ("health", counts),
            ("", [] if is_well else [verdict_text(self._verdicts[0])]),
            ("tools", list(self._tools.facts())),
            ("memory", list(self._memory())),
        ):
            if texts:
                table.add_row(label, Text(" · ").join(texts))
        return table

    def _memory(self) -> Iterator[Text]:
        for name in ("trainer", "children", "free"):
            if f"memory_{name}_gib" in self._metrics:
                yield Text(f"{name} {self._metrics[f'memory_{name}_gib']:.1f} GiB")
        if "gpu_memory_gib" in self._metrics:
            used, total, busy = (self._metrics[f"gpu_{n}"] for n in ("memory_gib", "memory_total_gib", "busy_share"))
            yield Text(f"GPU {used:.1f}/{total:.1f} GiB, {busy:.0%} busy")


def _figure(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else str(value)
