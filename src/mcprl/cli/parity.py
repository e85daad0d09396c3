"""`mcprl parity`: checks that sampler and learner give the same tokens the same probabilities."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from mcprl.cli.options import AsJson, Overrides, Recipe
from mcprl.cli.printing import STYLES, plain_table, words
from mcprl.cli.stages import StageConsole, loading_libraries
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.checks.parity import ParityReport
    from mcprl.config import RunConfig


def print_parity(console: Console, report: ParityReport) -> None:
    """Print the figures, the verdict and, unless the verdict is ok, the tokens that differ most."""
    from mcprl.checks.parity import EXACT_MAX, EXACT_MEAN

    verdict, figures = report.verdict, report.figures
    forced = f", {report.forced_tokens:,} of them forced" if report.forced_tokens else ""
    counts = f"{report.prompts:,} prompts, {report.turns:,} turns, {report.tokens:,} sampled tokens{forced}"
    console.print(Text(f"{counts}; {report.dtype}\n"))
    table = plain_table("sampler vs learner", right=("measured", "exact"))
    table.add_row("token alignment", f"{report.alignment:.2%}", "100%")
    table.add_row("mean |Δlogprob|", f"{figures.logprob_mean_abs_error:.1e}", f"≤ {EXACT_MEAN:.0e}")
    table.add_row("max |Δlogprob|", f"{figures.logprob_max_abs_error:.1e}", f"≤ {EXACT_MAX:.0e}")
    table.add_row("mean ratio", f"{figures.ratio_mean:.5f}", "1")
    table.add_row("mean |ratio − 1|", f"{figures.ratio_mean_abs_error:.1e}", "0")
    table.add_row("ratios outside 0.9–1.1", f"{figures.outside_share:.2%}", "0%")
    table.add_row("KL (k3)", f"{figures.kl:.1e}", "0")
    console.print(table, "", sep="\n")
    if verdict.severity is not Severity.OK:
        worst = plain_table("task", "text", right=("turn", "token", "sampler", "learner", "difference"))
        for token in report.worst:
            logprobs = f"{token.sampled_logprob:.4f}", f"{token.learner_logprob:.4f}", f"{token.difference:+.4f}"
            worst.add_row(words(token.task_id), words(repr(token.text)), f"{token.turn}", f"{token.token}", *logprobs)
        console.print(worst, "", sep="\n")
    console.print(words(verdict.what, STYLES[verdict.severity]))
    if verdict.fix:
        console.print(words(f"Fix: {verdict.fix}."))


def command(
    recipe: Recipe,
    prompts: Annotated[int, typer.Option("--prompts", "-n", min=1, help="Number of episodes to compare.")] = 16,
    as_json: AsJson = False,
    overrides: Overrides = None,
) -> None:
    """Check on a few short episodes that sampler and learner give the same tokens the same probabilities.

    Exits with status 1 if they disagree.
    """
    import asyncio

    from mcprl.recipe import load_recipe

    report = asyncio.run(_measure(load_recipe(recipe, overrides or []), prompts))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_parity(Console(highlight=False), report)
    if report.verdict.severity is Severity.BAD:
        raise typer.Exit(1)


async def _measure(config: RunConfig, prompts: int) -> ParityReport:
    with loading_libraries():
        from mcprl.checks.parity import run_parity
        from mcprl.tasks import load_tasks

    with StageConsole() as console:
        return await run_parity(config, load_tasks(config.tasks.train), console, prompts=prompts)
