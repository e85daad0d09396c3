"""What the end of a run shows of its success: each figure beside its bar, and how many steps were healthy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from mcprl.monitoring.severities import STYLES, verdict_words
from mcprl.training.success import SuccessMetric
from mcprl.training.summary import Summary
from mcprl.verdicts import Severity

__all__ = ["closing_verdicts", "success_table"]

_STEP_WORDS = {Severity.OK: "healthy", Severity.WARN: "to watch", Severity.BAD: "bad"}


def success_table(metrics: Sequence[SuccessMetric]) -> Table:
    table = Table("", box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("success", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("", style="dim")
    for metric in metrics:
        form = ".2%" if "%" in metric.bar else ".3g"
        table.add_row(
            Text("✓", style=STYLES[Severity.OK]) if metric.met else Text("✗", style=STYLES[Severity.BAD]),
            metric.name,
            "–" if metric.value is None else format(metric.value, form),
            metric.bar,
            metric.note,
        )
    return table


def closing_verdicts(summary: Summary) -> Iterator[Text]:
    """How many steps were healthy, then the most frequent of the gravest verdicts, and the names of the others."""
    steps = summary.as_dict()["verdicts"]["steps"]
    if not sum(steps.values()):
        return
    counts = [
        Text(f"{steps[severity.value]} {word}", style=STYLES[severity] if steps[severity.value] else "dim")
        for severity, word in _STEP_WORDS.items()
    ]
    yield Text.assemble(("health  ", "dim"), Text(", ").join(counts), f" of {sum(steps.values())} steps")
    for place, (count, last, verdict) in enumerate(summary.verdicts):
        times = f"{count} step{'s' if count > 1 else ''}, last {last}"
        if place == 0:
            yield verdict_words(verdict) + Text(f" ({times})", style="dim")
        else:
            yield Text.assemble(
                (f"{verdict.severity.value:4} {verdict.name}", STYLES[verdict.severity]), (f" ({times})", "dim")
            )
