"""`mcprl resume`: continue a run that ended early."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mcprl.cli.options import Overrides
from mcprl.cli.printing import facts_table
from mcprl.cli.stages import loading_libraries
from mcprl.cli.train import DEBUG_HELP

if TYPE_CHECKING:
    from mcprl.runs.resuming import ResumePoint


def _facts(resume_point: ResumePoint, folder: Path) -> list[tuple[str, str]]:
    """List what was found and verified, and what will be discarded."""
    checkpoint, steps = resume_point.checkpoint, resume_point.config.training.steps
    lines = [("run", str(folder)), ("steps", f"{resume_point.step} of {steps} done")]
    if checkpoint is None:
        lines.append(("checkpoint", "none: the run has not finished a step"))
    else:
        lines.append(("checkpoint", f"{checkpoint.path.name}, {checkpoint.bytes / 1e6:.1f} MB, checksums verified"))
    lines += [("skipped", f"{damaged.path.name}: {damaged.why}") for damaged in resume_point.damaged]
    lines += [("changed", f"{name} was {was}, now {now}") for name, (was, now) in resume_point.changed.items()]
    if resume_point.rolled_back:
        discarded = ", ".join(map(str, resume_point.rolled_back))
        lines.append(("discarded", f"the checkpoints of steps {discarded}"))
    if resume_point.journaled:
        use = (
            "they will be used"
            if resume_point.journal_fits
            else "they will be rerun, because the settings or weights have changed"
        )
        lines.append(("journal", f"{resume_point.journaled} finished episodes; {use}"))
    else:
        lines.append(("journal", "no finished episodes"))
    lines += [("journal", problem) for problem in resume_point.problems]
    return lines


def command(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as outputs/hello-cpu.")],
    overrides: Overrides = None,
    from_step: Annotated[
        int | None, typer.Option("--from", help="Resume from the checkpoint of this step and discard later ones.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print where the run would resume, then exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help=DEBUG_HELP)] = False,
) -> None:
    """Resume a run from its newest valid checkpoint. Episodes that finished after that are not run again."""
    from mcprl.cli.console import enduring_output
    from mcprl.runs.folder import RunFolder
    from mcprl.runs.resuming import find_resume_point

    folder = RunFolder.open(run)
    resume_point = find_resume_point(folder, overrides or [], from_step)
    Console(highlight=False).print(facts_table(_facts(resume_point, folder.path)))
    if dry_run:
        folder.close()
        return

    from mcprl.cli.debug_log import debugging

    with folder, debugging(folder.logs) if debug else nullcontext():
        with enduring_output(), loading_libraries(folder):
            from mcprl.cli.running import run_to_the_end

        run_to_the_end(resume_point.config, folder, resume_point)
