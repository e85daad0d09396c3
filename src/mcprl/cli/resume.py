"""`mcprl resume`: continue a run that ended early."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mcprl.cli.options import Overrides
from mcprl.cli.printing import facts_table
from mcprl.cli.train import DEBUG_HELP

if TYPE_CHECKING:
    from mcprl.runs.resuming import Standing

__all__ = ["command"]


def _facts(standing: Standing, folder: Path) -> list[tuple[str, str]]:
    """What was found, verified and set aside."""
    checkpoint, steps = standing.checkpoint, standing.config.training.steps
    lines = [("run", str(folder)), ("steps", f"{standing.step} of {steps} done")]
    if checkpoint is None:
        lines.append(("checkpoint", "none: no step was finished"))
    else:
        lines.append(("checkpoint", f"{checkpoint.path.name}, {checkpoint.bytes / 1e6:.1f} MB, checksums verified"))
    lines += [("skipped", f"{damaged.path.name}: {damaged.why}") for damaged in standing.damaged]
    lines += [("changed", f"{name} was {was}, is {now}") for name, (was, now) in standing.changed.items()]
    if standing.rolled_back:
        discarded = ", ".join(map(str, standing.rolled_back))
        lines.append(("discarded", f"the checkpoints of later steps {discarded}"))
    if standing.journaled:
        use = "they are used" if standing.journal_fits else "played again: the settings or weights have changed"
        lines.append(("journal", f"{standing.journaled} finished episodes; {use}"))
    else:
        lines.append(("journal", "no finished episodes"))
    lines += [("journal", problem) for problem in standing.problems]
    return lines


def command(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as outputs/hello-cpu.")],
    overrides: Overrides = None,
    from_step: Annotated[
        int | None,
        typer.Option("--from", help="Go back to the checkpoint of this step; later steps are discarded."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the state of the run and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)] = False,
) -> None:
    """Resume a run from its newest valid checkpoint. Episodes that finished after it are not played again."""
    from mcprl.runs.folder import RunFolder
    from mcprl.runs.resuming import find_standing

    folder = RunFolder.open(run)
    standing = find_standing(folder, overrides or [], from_step)
    Console(highlight=False).print(facts_table(_facts(standing, folder.path)))
    if dry_run:
        folder.close()
        return

    from mcprl.cli.debug_log import debugging
    from mcprl.cli.running import run_to_the_end

    with debugging(folder.logs) if debug else nullcontext():
        run_to_the_end(standing.config, recipe=folder.path / "config.yaml", folder=folder, standing=standing)
