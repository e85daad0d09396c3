"""Where a run stands that is to be resumed, in a few lines."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from mcprl.monitoring.printable import printable
from mcprl.training.resuming import Standing

__all__ = ["print_standing"]


def print_standing(standing: Standing, folder: Path) -> None:
    """What was found, verified and set aside."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in _lines(standing, folder):
        table.add_row(name, printable(words))
    Console(highlight=False, markup=False).print(table)


def _lines(standing: Standing, folder: Path) -> list[tuple[str, str]]:
    checkpoint, steps = standing.checkpoint, standing.config.training.steps
    lines = [("run", str(folder)), ("steps", f"{standing.step} of {steps} done")]
    if checkpoint is None:
        lines.append(("checkpoint", "none: no step was finished"))
    else:
        lines.append(("checkpoint", f"{checkpoint.path.name}, {checkpoint.bytes / 1e6:.1f} MB, every digest right"))
    lines += [("skipped", f"{damaged.path.name}: {damaged.why}") for damaged in standing.damaged]
    lines += [("changed", f"{name} was {was}, is {now}") for name, (was, now) in standing.changed.items()]
    if standing.rolled_back:
        given_up = ", ".join(map(str, standing.rolled_back))
        lines.append(("given up", f"the checkpoints of the later steps {given_up}"))
    if standing.journaled:
        use = (
            "they are used"
            if standing.journal_fits
            else "played again: they were played under other settings or by other weights"
        )
        lines.append(("journal", f"{standing.journaled} finished episodes; {use}"))
    else:
        lines.append(("journal", "no finished episodes"))
    lines += [("journal", problem) for problem in standing.problems]
    return lines
