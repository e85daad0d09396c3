"""The live panel of `mcprl train`: where the run stands, how it goes, what is wrong, and what it uses.

Nothing is laid out before it is drawn, so the panel fits its terminal also after that was resized. Rows come in the
order of their worth: a terminal that is too low loses the last ones.
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

from mcprl.config import RunConfig
from mcprl.monitoring.durations import duration
from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import STYLES, verdict_words
from mcprl.monitoring.sparkline import sparkline
from mcprl.monitoring.step_table import StepRow, StepTable
from mcprl.monitoring.tool_use import ToolUse
from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Severity, Verdict

__all__ = ["TrainingPanel"]

_LABEL_WIDTH = 11
_GAP = 2
_BORDERED_FROM = 60  # columns
_AIRY_FROM = 32  # lines
_MIN_BODY = 6
_SHOWN_STEPS = 12
_STEP_WORDS = {Severity.OK: "healthy", Severity.WARN: "to watch", Severity.BAD: "bad"}
_SEPARATOR = " · "
# Neighbours differ in colour, since blocks of full height touch those above them.
_COURSES = (
    ("reward", "reward", "+.3f", "green"),
    ("success", "success_rate", ".0%", "cyan"),
    ("valid calls", "valid_call_rate", ".0%", "blue"),
    ("KL", "kl", ".1e", "magenta"),
    ("entropy", "entropy", ".2f", "cyan"),
)

_Line = tuple[Text, RenderableType | None, Text]
"""A row of the upper part: its label, a bar or None for a sparkline's place, and its figures."""


class TrainingPanel:
    """What a terminal shows of a run. Told of events by the console, drawn by rich whenever it likes."""

    def __init__(self, config: RunConfig, *, steps_done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._started = self._step_began = clock()
        self._steps_done = steps_done
        self._stage = "starting"
        self._finished = Counter[int]()  # episodes of each step that is not done
        self._episodes_per_step = config.training.tasks_per_step * config.episodes.group_size
        self._step_seconds: list[float] = []
        self._courses: dict[str, list[float]] = {name: [] for _, name, _, _ in _COURSES}
        self._health = Counter[Severity]()
        self._verdicts: Sequence[Verdict] = ()
        self._metrics: Mapping[str, float] = {}
        self._tools = ToolUse(config.servers)
        self._rows: list[StepRow] = []
        self._is_closed = False

    def show_stage(self, text: str) -> None:
        """What the run is busy with, until the next episode or step ends."""
        self._stage = printable(text)

    def add_episode(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._tools.add(outcome)
        if isinstance(outcome, Trajectory):
            self._stage = ""
            self._finished[step] += 1

    def add_step(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict], row: StepRow) -> None:
        self._stage = ""
        self._steps_done = step + 1
        self._step_began = self._clock()
        self._step_seconds.append(metrics["step_s"])
        for name, course in self._courses.items():
            if name in metrics:
                course.append(metrics[name])
        self._health[verdicts[0].severity if verdicts else Severity.OK] += 1
        self._verdicts, self._metrics = verdicts, metrics
        self._rows.append(row)
        del self._finished[step]

    def close(self) -> None:
        """From now on the panel shows how the run ended rather than what it is doing."""
        self._is_closed = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _BORDERED_FROM:
            # The border is dim, and its style would be that of the title too.
            title = Text(_SEPARATOR).join(self._title())
            title.stylize("not dim")
            shown = Panel(
                Group(*self._body(options.max_width - 4, airy=console.height >= _AIRY_FROM)),
                title=title,
                title_align="left",
                border_style="dim",
                padding=(0, 1),
            )
        else:
            shown = Group(_packed(list(self._title()), options.max_width), *self._body(options.max_width))
        yield shown
        rows = self._rows[-_SHOWN_STEPS:]
        if not self._is_closed:
            # A header and at least two steps, or the room is better left empty.
            room = console.height - len(console.render_lines(shown, options.update(height=None))) - 2
            rows = rows[-room:] if room >= 2 else []
        if rows:
            yield StepTable(rows)

    def _title(self) -> Iterator[Text]:
        yield Text(printable(self._config.name), style="bold")
        yield Text(f"step {self._steps_done}/{self._config.training.steps}")
        yield Text(f"{duration(self._clock() - self._started)} elapsed")
        left_s = self._left_s()
        if left_s is not None and not self._is_closed:
            yield Text(f"ETA {duration(left_s)}")

    def _left_s(self) -> float | None:
        """How long the run will still take; None before a step is done. Stands still where a step drags on."""
        if not self._step_seconds:
            return None
        mean_s = sum(self._step_seconds) / len(self._step_seconds)
        left = self._config.training.steps - self._steps_done
        under_way_s = min(self._clock() - self._step_began, mean_s) if left else 0.0
        return left * mean_s - under_way_s

    def _body(self, width: int, *, airy: bool = False) -> Iterator[RenderableType]:
        yield self._lines(width, airy=airy)
        if airy:
            yield Text()
        facts = Table.grid(padding=(0, _GAP, 0, 0))
        facts.add_column(style="dim", width=_LABEL_WIDTH, no_wrap=True)
        facts.add_column(overflow="fold")
        room = width - _LABEL_WIDTH - _GAP
        worst = self._verdicts[0] if self._verdicts else None
        for label, texts in (
            ("health", list(self._health_facts())),
            ("", [verdict_words(worst)] if worst is not None and worst.severity is not Severity.OK else []),
            ("tools", list(self._tools.facts())),
            ("memory", list(self._memory())),
        ):
            if texts:
                facts.add_row(label, _packed(texts, room))
        yield facts

    def _lines(self, width: int, *, airy: bool) -> Table:
        """Bars and sparklines, each between its label and its figures; too narrow a terminal gets the last figure."""
        courses = [
            (label, values, form, style) for label, name, form, style in _COURSES if (values := self._courses[name])
        ]
        room = width - _LABEL_WIDTH - 2 * _GAP
        widest = max((cell_len(_from_to(values, form)) for _, values, form, _ in courses), default=0)
        figures = _from_to if room - widest >= _MIN_BODY else _last
        rows = list(self._bars())
        body = room - max(cell_len(text.plain) for text in [*(row[2] for row in rows), Text("")])
        body = min([body, *(room - cell_len(figures(values, form)) for _, values, form, _ in courses)])
        table = Table.grid(padding=(0, _GAP, 0, 0))
        table.add_column(style="dim", width=_LABEL_WIDTH, no_wrap=True)
        if body >= 1:
            table.add_column(width=body, no_wrap=True)
        table.add_column(no_wrap=True)
        for label, bar, text in rows:
            table.add_row(label, *([bar or ""] if body >= 1 else []), text)
        if airy and courses:
            table.add_row()
        for label, values, form, style in courses:
            spark = [Text(sparkline(values, body), style=style)] if body >= 1 else []
            table.add_row(label, *spark, figures(values, form))
        return table

    def _bars(self) -> Iterator[_Line]:
        steps = self._config.training.steps
        yield Text("run"), _bar(self._steps_done, steps, "green"), Text(f"{self._steps_done}/{steps} steps")
        if self._is_closed or self._steps_done == steps:
            return
        # With an asynchronous pipeline, episodes of coming steps finish too: the bar is that of the first one.
        step = min(self._finished, default=self._steps_done)
        finished, total = self._finished[step], self._episodes_per_step
        doing = f"{finished}/{total} episodes" if finished < total else "update, publish"
        yield Text(f"step {step + 1}"), _bar(finished, total, "cyan"), Text(doing)
        ahead = self._finished.total() - finished
        if ahead:
            yield Text("ahead"), None, Text(f"{ahead} episodes")
        if self._stage:
            yield Text("now"), Text(self._stage, no_wrap=True, overflow="ellipsis"), Text("")

    def _health_facts(self) -> Iterator[Text]:
        for severity, word in _STEP_WORDS.items():
            if self._health[severity]:
                yield Text(f"{self._health[severity]} {word}", style=STYLES[severity])

    def _memory(self) -> Iterator[Text]:
        for name in ("trainer", "children", "free"):
            if f"memory_{name}_gib" in self._metrics:
                yield Text(f"{name} {self._metrics[f'memory_{name}_gib']:.1f} GiB")
        if "gpu_memory_gib" in self._metrics:
            used, total, busy = (self._metrics[f"gpu_{n}"] for n in ("memory_gib", "memory_total_gib", "busy_share"))
            yield Text(f"GPU {used:.1f}/{total:.1f} GiB, {busy:.0%} busy")


def _bar(done: int, total: int, style: str) -> ProgressBar:
    return ProgressBar(total=total, completed=min(done, total), complete_style=style, finished_style=style)


def _packed(texts: Sequence[Text], width: int) -> Text:
    """Facts side by side, as many on a line as fit, so that a line is broken between two of them."""
    lines = [Text()]
    for text in texts:
        if lines[-1] and lines[-1].cell_len + len(_SEPARATOR) + text.cell_len > width:
            lines.append(Text())
        if lines[-1]:
            lines[-1].append(_SEPARATOR)
        lines[-1].append_text(text)
    return Text("\n").join(lines)


def _from_to(values: Sequence[float], form: str) -> str:
    """The first and the last of a course: `-0.100 → +0.250`."""
    return " → ".join(_figure(value, form) for value in [*values[:1], *values[1:][-1:]])


def _last(values: Sequence[float], form: str) -> str:
    return _figure(values[-1], form)


def _figure(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else str(value)
