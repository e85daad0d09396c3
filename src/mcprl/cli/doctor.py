"""`mcprl doctor`: everything that can be known of a recipe before a step is spent, each fault with its fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.doctor import Finding

__all__ = ["command"]


def command(
    recipe: Recipe,
    fast: Annotated[
        bool, typer.Option("--fast", help="Load no model: the recipe, keys, servers, tasks and the machine alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
    overrides: Overrides = None,
) -> None:
    """Examine a recipe from its YAML to a sample of its episodes: what is well, what is not, and how to mend it.

    Exits with 1 where something is wrong.
    """
    import asyncio
    import time

    from rich.console import Console

    from mcprl.doctor import passed
    from mcprl.monitoring.doctor_table import print_closing, print_finding

    started = time.monotonic()
    console = Console(highlight=False)

    def show(finding: Finding) -> None:
        if not as_json:
            print_finding(console, finding)

    findings = asyncio.run(_examine(recipe, overrides or [], fast=fast, show=show))
    seconds = time.monotonic() - started
    if as_json:
        found = [finding.to_json() for finding in findings]
        print(json.dumps({"passed": passed(findings), "seconds": seconds, "findings": found}, indent=2))
    else:
        print_closing(console, findings, seconds)
    raise typer.Exit(0 if passed(findings) else 1)


async def _examine(
    recipe: Path, overrides: list[str], *, fast: bool, show: Callable[[Finding], None]
) -> tuple[Finding, ...]:
    import shutil
    import tempfile

    from mcprl.doctor import Examination, examine
    from mcprl.doctor.checks import CHECKS
    from mcprl.monitoring.doctor_table import ExaminationStatus

    folder = Path(tempfile.mkdtemp(prefix="mcprl-doctor-"))
    findings: tuple[Finding, ...] = ()
    try:
        with ExaminationStatus() as status:

            def tell(finding: Finding) -> None:
                status.hide()
                show(finding)

            examination = Examination(recipe=recipe, folder=folder, teller=status, overrides=overrides, fast=fast)
            findings = await examine(examination, CHECKS, tell)
    finally:
        # A log that a finding tells to read is left for that.
        if not any(str(folder) in finding.measured + finding.fix for finding in findings):
            shutil.rmtree(folder)
    return findings
