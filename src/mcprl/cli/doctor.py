"""`mcprl doctor`: checks everything about a recipe that can be checked before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcprl.cli.options import AsJson, Overrides, Recipe
from mcprl.cli.printing import STYLES, print_json, printable
from mcprl.cli.stages import StageConsole, loading_libraries
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.checks.doctor import Finding
    from mcprl.records import LostEpisode, Trajectory

__all__ = ["ExaminationStatus", "command", "print_closing", "print_finding"]

_MARKS = {Severity.OK: "✓", Severity.WARN: "!", Severity.BAD: "✗", None: "–"}
_NAME_WIDTH = 18


class ExaminationStatus(StageConsole):
    """Shows on stderr what is being checked, if stderr is a terminal."""

    def hide(self) -> None:
        """Clear the line before something else is printed."""
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._progress.update(self._bar, description=f"{printable(text)} …")
        self._progress.start()

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        from mcprl.records import Trajectory

        self._done += isinstance(outcome, Trajectory)
        self.stage(f"running sample episodes: {self._done} finished")


def print_finding(console: Console, finding: Finding) -> None:
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
    """Print the result in one line: Ready to train: 12 ok, 2 warnings; 31 s."""
    counts = Counter(finding.severity for finding in findings)
    bad, warn, left = counts[Severity.BAD], counts[Severity.WARN], counts[None]
    said = [f"{counts[Severity.OK]} ok"]
    said += [
        f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((warn, "warning"), (bad, "error")) if count
    ]
    said += [f"{left} skipped"] if left else []
    played = not any(finding.check == "sampler" and finding.severity is None for finding in findings)
    verdict = "Not ready" if bad else "Ready to train" if played else "No errors found"
    style = STYLES[Severity.BAD if bad else Severity.WARN if warn else Severity.OK]
    console.print()
    console.print(Text(f"{verdict}: {', '.join(said)}; {seconds:.0f} s.", style=style))


def command(
    recipe: Recipe,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Check only the recipe, keys, servers, tasks and machine; do not load the model."),
    ] = False,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Check a recipe end to end (config, servers, tasks, model, sample episodes) and suggest fixes.

    Exits with status 1 if there are errors.
    """
    import asyncio
    import time

    started = time.monotonic()
    console = Console(highlight=False)

    def show(finding: Finding) -> None:
        if not as_json:
            print_finding(console, finding)

    findings = asyncio.run(_examine(recipe, overrides or [], fast=fast, show=show))
    seconds = time.monotonic() - started

    from mcprl.checks.doctor import passed

    if as_json:
        found = [finding.to_json() for finding in findings]
        print_json({"passed": passed(findings), "seconds": seconds, "findings": found})
    else:
        print_closing(console, findings, seconds)
    raise typer.Exit(0 if passed(findings) else 1)


async def _examine(
    recipe: Path, overrides: list[str], *, fast: bool, show: Callable[[Finding], None]
) -> tuple[Finding, ...]:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="mcprl-doctor-"))
    findings: tuple[Finding, ...] = ()
    try:
        with loading_libraries():
            from mcprl.checks.doctor import Examination, examine
            from mcprl.checks.doctor.checks import CHECKS

        with ExaminationStatus() as status:

            def tell(finding: Finding) -> None:
                status.hide()
                show(finding)

            examination = Examination(recipe=recipe, folder=folder, teller=status, overrides=overrides, fast=fast)
            findings = await examine(examination, CHECKS, tell)
    finally:
        # Keep the folder if a finding names a log in it.
        if not any(str(folder) in finding.measured + finding.fix for finding in findings):
            shutil.rmtree(folder)
    return findings
