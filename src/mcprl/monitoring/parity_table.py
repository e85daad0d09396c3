"""What `mcprl parity` shows: the figures beside what is exact, the tokens that differ most, the verdict in words."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import STYLES
from mcprl.training.parity import ParityReport
from mcprl.training.parity_verdict import EXACT_MAX, EXACT_MEAN
from mcprl.verdicts import Severity

__all__ = ["ParityTable"]

_GAP = (0, 2, 0, 0)


class ParityTable:
    """A parity report for a person. Where all is exact, the tokens that differ most say nothing and are left out."""

    def __init__(self, report: ParityReport) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._parts()

    def _parts(self) -> Iterator[RenderableType]:
        report, verdict = self._report, self._report.verdict
        forced = f", {report.forced_tokens:,} of them forced" if report.forced_tokens else ""
        counts = f"{report.prompts:,} prompts, {report.turns:,} turns, {report.tokens:,} sampled tokens{forced}"
        yield Text(f"{counts}; {report.dtype}")
        yield Text()
        yield self._figures()
        if verdict.severity is not Severity.OK:
            yield Text()
            yield self._worst()
        yield Text()
        yield Text(printable(verdict.what), style=STYLES[verdict.severity])
        if verdict.fix:
            yield Text(printable(f"Fix: {verdict.fix}."))

    def _figures(self) -> Table:
        figures = self._report.figures
        table = Table("sampler vs learner", box=None, header_style="bold", pad_edge=False, padding=_GAP)
        table.add_column("measured", justify="right", no_wrap=True)
        table.add_column("exact", justify="right", style="dim", no_wrap=True)
        table.add_row("token alignment", f"{self._report.alignment:.2%}", "100%")
        table.add_row("mean |Δlogprob|", f"{figures.logprob_mean_abs_error:.1e}", f"≤ {EXACT_MEAN:.0e}")
        table.add_row("max |Δlogprob|", f"{figures.logprob_max_abs_error:.1e}", f"≤ {EXACT_MAX:.0e}")
        table.add_row("mean ratio", f"{figures.ratio_mean:.5f}", "1")
        table.add_row("mean |ratio − 1|", f"{figures.ratio_mean_abs_error:.1e}", "0")
        table.add_row("ratios outside 0.9–1.1", f"{figures.outside_share:.2%}", "0%")
        table.add_row("KL (k3)", f"{figures.kl:.1e}", "0")
        return table

    def _worst(self) -> Table:
        table = Table("task", box=None, header_style="bold", pad_edge=False, padding=_GAP)
        for title in ("turn", "token"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("text", overflow="fold")
        for title in ("sampler", "learner", "difference"):
            table.add_column(title, justify="right", no_wrap=True)
        for token in self._report.worst:
            table.add_row(
                Text(printable(token.task_id)),
                f"{token.turn}",
                f"{token.token}",
                Text(printable(repr(token.text))),
                f"{token.sampled_logprob:.4f}",
                f"{token.learner_logprob:.4f}",
                f"{token.difference:+.4f}",
            )
        return table
