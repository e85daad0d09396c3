"""`mcprl eval`: evaluate a model or an adapter on tasks, and compare evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mcprl.cli.options import (
    DEFAULT_KEY_ENV,
    AsJson,
    Body,
    Endpoint,
    KeyEnv,
    MaxUsd,
    Overrides,
    PerMinute,
    Price,
    endpoint_settings,
)
from mcprl.cli.printing import plain_table, print_json
from mcprl.cli.stages import StageConsole, loading_libraries

if TYPE_CHECKING:
    from mcprl.evaluation.harness import Played, Request
    from mcprl.evaluation.report import Report
    from mcprl.evaluation.results import Comparison

_SHOWN_ROWS = 12


def print_report(report: Report, folder: Path | None, console: Console | None = None) -> None:
    """Print the tables of a report, with long ones cut, and the path of the full report."""
    from mcprl.evaluation.report import EVERY_TASK

    console = console or Console(highlight=False)
    console.print(Text(report.title, style="bold"))
    console.print(Text(" ".join(report.about), style="dim"))
    for table in report.tables:
        if table.title == EVERY_TASK:  # shown only in the file
            continue
        shown = plain_table(*table.columns[:1], right=table.columns[1:])
        for row in table.rows[:_SHOWN_ROWS]:
            shown.add_row(*map(Text, row))
        console.print("", Text(table.title, style="bold"), shown, sep="\n")
        if len(table.rows) > _SHOWN_ROWS:
            console.print(Text(f"… and {len(table.rows) - _SHOWN_ROWS} more in the report", style="dim"))
        if table.note:
            console.print(Text(table.note, style="dim"))
    if folder is not None:
        console.print(f"\nReport: {folder / 'report.md'}", markup=False, soft_wrap=True)


def command(  # noqa: PLR0913 - each is an option of the command line
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe with the model, servers and limits.", show_default=False)
    ] = None,
    tasks: Annotated[Path | None, typer.Option("--tasks", help="Task file; default: tasks.validation.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Benchmark, such as bfcl-multi-turn.")] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", exists=True, file_okay=False, help="Adapter from an earlier run.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Folder, Hub name, or model name at --endpoint.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-k", min=1, help="Episodes per task.")] = 1,
    sample: Annotated[int | None, typer.Option("--sample", min=1, help="Number of random tasks to evaluate.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Decode greedily (temperature close to 0).")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", exists=True, help="Baseline evaluation to compare with.")
    ] = None,
    compared: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="BEFORE AFTER", help="Compare two existing evaluations, then exit."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the report; default: outputs/eval-NAME.")] = None,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    key_env: KeyEnv = DEFAULT_KEY_ENV,
    price: Price = None,
    max_usd: MaxUsd = None,
    per_minute: PerMinute = None,
    body: Body = None,
    overrides: Overrides = None,
) -> None:
    """Evaluate a model or an adapter: success with confidence intervals, pass@k, pass^k, tools, failures, cost.

    Writes results.json, report.md and every trajectory into a new folder.
    """
    if compared is not None:
        return _compare(compared, out, as_json=as_json)
    with loading_libraries():
        from mcprl.evaluation.harness import make_request
        from mcprl.evaluation.report import make_folder, write_report
        from mcprl.evaluation.results import compare, read_evaluation

    before = None if against is None else read_evaluation(against)
    player = endpoint_settings(endpoint, model, key_env, price, max_usd, per_minute, body)
    request = make_request(
        recipe,
        suite=suite,
        tasks=tasks,
        model=model if player is None else None,
        adapter=adapter,
        episodes=episodes,
        sample=sample,
        greedy=greedy,
        endpoint=player,
        overrides=overrides or [],
    )
    name = request.config.name if suite is None or recipe is None else f"{request.config.name}-{suite}"
    folder = make_folder(request.config.training.outputs, name, out)
    played = _play(request, folder)
    comparison = None if before is None else compare(before, played.evaluation)
    write_report(folder, played, comparison)
    return _show(played, comparison, folder, as_json=as_json)


def _play(request: Request, folder: Path) -> Played:
    import asyncio

    from mcprl.evaluation.harness import choose_tasks, evaluate

    tasks = choose_tasks(request.suite.tasks(), request.sample, request.config.seed)
    with StageConsole(len(tasks) * request.episodes) as console:
        return asyncio.run(evaluate(request, console, logs=folder / "logs"))


def _show(played: Played, comparison: Comparison | None, folder: Path, *, as_json: bool) -> None:
    from mcprl.evaluation.report import evaluation_report
    from mcprl.evaluation.results import comparison_json, to_json

    if not as_json:
        print_report(evaluation_report(played.evaluation, comparison), folder)
        return
    # Details per task and episode are in results.json.
    document: dict[str, Any] = to_json(played.evaluation)
    for name in ("tasks", "episodes", "config"):
        del document[name]
    document["folder"] = str(folder)
    if comparison is not None:
        document["comparison"] = comparison_json(comparison)
    print_json(document)


def _compare(folders: tuple[Path, Path], out: Path | None, *, as_json: bool) -> None:
    from mcprl.evaluation.report import comparison_report, make_folder, write_comparison
    from mcprl.evaluation.results import compare, comparison_json, read_evaluation

    comparison = compare(*map(read_evaluation, folders))
    if out is not None:
        write_comparison(make_folder(out.parent, out.name, out), comparison)
    if as_json:
        print_json(comparison_json(comparison))
    else:
        print_report(comparison_report(comparison), out)
