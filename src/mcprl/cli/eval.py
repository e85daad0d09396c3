"""`mcprl eval`: any model or adapter on any tasks, with intervals, against another evaluation, as a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcprl.cli.options import Overrides

if TYPE_CHECKING:
    from mcprl.evaluation.comparing import Comparison
    from mcprl.evaluation.harness import Played, Request

__all__ = ["command"]

_Folder = Annotated[Path | None, typer.Option("--out", help="Folder for the report; default: outputs/eval-NAME.")]


def command(  # noqa: PLR0913 - each is an option of the command line
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe with the model, servers and limits.", show_default=False)
    ] = None,
    tasks: Annotated[Path | None, typer.Option("--tasks", help="Task file; default: the recipe's own.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="Benchmark, such as bfcl-multi-turn.")] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", exists=True, file_okay=False, help="Adapter of a run.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Folder or hub name of another model.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-k", min=1, help="Episodes of each task.")] = 1,
    sample: Annotated[int | None, typer.Option("--sample", min=1, help="Play so many tasks only, by seed.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token, as good as always.")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", exists=True, help="Evaluation to compare with, as the one before.")
    ] = None,
    compared: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="BEFORE AFTER", help="Compare two evaluations; play nothing."),
    ] = None,
    out: _Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    overrides: Overrides = None,
) -> None:
    """Evaluate a model or an adapter: success with intervals, pass@k, pass^k, tools, failures, cost, before and after.

    Writes results.json, report.md, report.html and every trajectory into a folder of its own.
    """
    import asyncio

    if compared is not None:
        _compare(compared, out, as_json=as_json)
        return
    from mcprl.evaluation.comparing import compare
    from mcprl.evaluation.report import make_folder, write_report
    from mcprl.evaluation.requests import Wishes, make_request
    from mcprl.evaluation.results import read_evaluation

    before = None if against is None else read_evaluation(against)
    wishes = Wishes(
        recipe=recipe,
        suite=suite,
        tasks=tasks,
        model=model,
        adapter=adapter,
        episodes=episodes,
        sample=sample,
        greedy=greedy,
        overrides=overrides or [],
    )
    request = make_request(wishes)
    name = request.config.name if suite is None or recipe is None else f"{request.config.name}-{suite}"
    folder = make_folder(request.config.training.outputs, name, out)
    played = asyncio.run(_play(request, folder))
    comparison = None if before is None else compare(before, played.evaluation)
    write_report(folder, played, comparison)
    _show(played, comparison, folder, as_json=as_json)


async def _play(request: Request, folder: Path) -> Played:
    from mcprl.evaluation.harness import choose_tasks, evaluate
    from mcprl.monitoring.eval_tables import EvalConsole

    tasks = choose_tasks(request.suite.tasks(), request.sample, request.config.seed)
    with EvalConsole(len(tasks) * request.episodes) as console:
        return await evaluate(request, console, logs=folder / "logs")


def _show(played: Played, comparison: Comparison | None, folder: Path, *, as_json: bool) -> None:
    from mcprl.evaluation.comparing import comparison_json
    from mcprl.evaluation.results import to_json
    from mcprl.monitoring.eval_tables import print_evaluation

    if not as_json:
        print_evaluation(played.evaluation, comparison, folder)
        return
    # What there is one of for each task or episode is in results.json.
    document: dict[str, Any] = to_json(played.evaluation)
    for name in ("tasks", "episodes", "config"):
        del document[name]
    document["folder"] = str(folder)
    if comparison is not None:
        document["comparison"] = comparison_json(comparison)
    print(json.dumps(document, indent=2))


def _compare(folders: tuple[Path, Path], out: Path | None, *, as_json: bool) -> None:
    from mcprl.evaluation.comparing import compare, comparison_json
    from mcprl.evaluation.report import make_folder, write_comparison
    from mcprl.evaluation.results import read_evaluation
    from mcprl.monitoring.eval_tables import print_comparison

    comparison = compare(*map(read_evaluation, folders))
    if out is not None:
        write_comparison(make_folder(out.parent, out.name, out), comparison)
    if as_json:
        print(json.dumps(comparison_json(comparison), indent=2))
    else:
        print_comparison(comparison, out)
