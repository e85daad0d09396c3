"""What `mcprl doctor` shows: a line a finding, with what was measured, and below it how to mend what is not well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcprl.doctor.findings import Finding
from mcprl.monitoring.printable import printable
from mcprl.monitoring.severities import STYLES
from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Severity, Verdict

__all__ = ["ExaminationStatus", "print_closing", "print_finding"]

_MARKS = {Severity.OK: "✓", Severity.WARN: "!", Severity.BAD: "✗", None: "–"}
_NAME_WIDTH = 18


class ExaminationStatus:
    """Says on stderr what is being looked at, out of the way of the findings; where stderr is no terminal, nothing."""

    def __init__(self) -> None:
        self._status = Console(stderr=True, highlight=False).status("examining …")
        self._episodes = 0

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def hide(self) -> None:
        """Leave the line to what is printed next."""
        self._status.stop()

    def stage(self, text: str) -> None:
        self._status.update(escape(f"{printable(text)} …"))
        self._status.start()

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._episodes += isinstance(outcome, Trajectory)
        self.stage(f"playing: {self._episodes} episodes are finished")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None: ...


def print_finding(console: Console, finding: Finding) -> None:
    """One finding, wrapped beside its name."""
    style = "dim" if finding.severity is None else STYLES[finding.severity]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=1)
    table.add_column(width=_NAME_WIDTH, overflow="fold")
    table.add_column(overflow="fold")
    what = Text(printable(finding.measured), style="dim" if finding.severity is None else "")
    if finding.code:
        what = Text(f"{finding.code} ", style=style).append_text(what)
    if finding.fix:
        what.append(f"\nFix: {printable(finding.fix)}.", style="bold")
    mark = Text(_MARKS[finding.severity], style=style)
    table.add_row(mark, Text(printable(finding.check), style=style), what)
    console.print(Padding(table, 0))


def print_closing(console: Console, findings: Sequence[Finding], seconds: float) -> None:
    """What all of it comes to, in one line."""
    counts = Counter(finding.severity for finding in findings)
    bad, warn, left = counts[Severity.BAD], counts[Severity.WARN], counts[None]
    said = [f"{counts[Severity.OK]} well"]
    said += [f"{warn} to know of"] if warn else []
    said += [f"{bad} to mend first"] if bad else []
    said += [f"{left} skipped"] if left else []
    verdict = "Not ready" if bad else "Ready to train" if not left else "Nothing found wrong"
    console.print()
    console.print(Text(f"{verdict}: {', '.join(said)}; {seconds:.0f} s.", style=STYLES[_worst(bad, warn)]))


def _worst(bad: int, warn: int) -> Severity:
    return Severity.BAD if bad else Severity.WARN if warn else Severity.OK
