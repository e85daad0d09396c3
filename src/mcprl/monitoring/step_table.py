"""The steps of a run, a line each: the columns of the log, and a table that fits its terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mcprl.monitoring.durations import duration
from mcprl.monitoring.severities import verdict_mark
from mcprl.verdicts import Verdict

__all__ = ["COLUMNS", "StepRow", "StepTable", "step_row"]

COLUMNS = ("step", "reward", "success", "valid calls", "KL", "ratio", "lost", "tokens/s", "step time", "ETA", "health")
_GAP = 2
# A narrow terminal does without these, in this order; what is wrong with them is told by health.
_FIRST_TO_GO = ("tokens/s", "ratio", "lost", "step time", "valid calls", "KL", "ETA", "success")

StepRow = tuple[str | Text, ...]
"""A cell for each of COLUMNS."""


def step_row(place: str, metrics: Mapping[str, float], verdicts: Sequence[Verdict], *, left_s: float) -> StepRow:
    """What is shown of a step: `place` is which of how many it is, `left_s` how long the run will still take."""

    def of_update(name: str, form: str) -> str:
        # An update that was skipped has no such figure.
        return format(metrics[name], form) if name in metrics else "–"

    return (
        place,
        f"{metrics['reward']:+.3f}",
        f"{metrics['success_rate']:.0%}",
        f"{metrics['valid_call_rate']:.0%} of {metrics['calls']:.0f}",
        of_update("kl", ".1e"),
        of_update("ratio_mean", ".4f"),
        f"{metrics['episodes_lost_to_infrastructure']:.0f}",
        f"{metrics['sampled_tokens_per_second']:.0f}",
        duration(metrics["step_s"]),
        duration(left_s),
        verdict_mark(verdicts),
    )


class StepTable:
    """Rows with as many columns as there is room for; health stays to the last."""

    def __init__(self, rows: Sequence[StepRow]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        texts = [tuple(map(str, row)) for row in self._rows]
        kept = {name: max(map(cell_len, column)) for name, *column in zip(COLUMNS, COLUMNS, *texts, strict=True)}
        for name in _FIRST_TO_GO:
            if sum(kept.values()) + _GAP * (len(kept) - 1) > options.max_width:
                del kept[name]
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _GAP, 0, 0))
        for name in kept:
            table.add_column(name, no_wrap=True)
        for row in self._rows:
            table.add_row(*(cell for name, cell in zip(COLUMNS, row, strict=True) if name in kept))
        yield table
