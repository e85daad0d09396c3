"""`mcprl runs`: what runs there are, where one stands, and how several compare."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.status import Status

    from mcprl.training.checkpoints import Checkpoint, Damaged
    from mcprl.training.past_runs import PastRun

__all__ = ["app"]

_OUTPUTS = Path("outputs")
_RUN_HELP = "Folder of a run, or its name below outputs."

app = typer.Typer(help="List runs, look at one, compare several.", no_args_is_help=True, rich_markup_mode=None)

_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


@app.callback()
def runs() -> None:
    """List runs, look at one, compare several. Nothing is changed, and a run may be at work meanwhile."""


@app.command("list")
def list_runs(
    outputs: Annotated[Path, typer.Argument(metavar="OUTPUTS", help="Folder of runs.")] = _OUTPUTS,
    as_json: _AsJson = False,
) -> None:
    """List the runs in a folder, the last changed first: state, steps, reward from the first step to the last, size."""
    from rich.console import Console

    with _shown("reading the runs"):
        from mcprl.monitoring.run_tables import RunList
        from mcprl.training.past_runs import find_runs

        found = find_runs(outputs)
    console = Console(highlight=False)
    if as_json:
        _print_json([_run_json(run) for run in found])
    elif found:
        console.print(RunList(found), crop=False)
    else:
        console.print(f"No runs in {outputs}. mcprl train RECIPE starts one.", markup=False, soft_wrap=True)


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN_HELP, show_default=False)], as_json: _AsJson = False
) -> None:
    """Print where a run stands: steps, rewards, verdicts, checkpoints (each verified), settings, what to do next."""
    from rich.console import Console

    with _shown("reading the run") as status:
        from mcprl.monitoring.run_tables import RunDetails
        from mcprl.training.past_runs import verify_checkpoints

        found = _find(run)
        checkpoints = verify_checkpoints(found, lambda path: status.update(f"verifying {path.name} …"))
    if as_json:
        _print_json(_details_json(found, checkpoints))
    else:
        Console(highlight=False).print(RunDetails(found, checkpoints), crop=False)


@app.command("compare")
def compare_runs(
    chosen: Annotated[list[str], typer.Argument(metavar="RUN RUN [RUN]...", help=_RUN_HELP, show_default=False)],
    as_json: _AsJson = False,
) -> None:
    """Print runs side by side: the settings that differ, their figures, and the rewards over the steps."""
    from rich.console import Console

    from mcprl.errors import NoRunError

    if len(chosen) < 2:
        raise NoRunError("one run alone cannot be compared", fix="name two or more, as mcprl runs list lists them")
    with _shown("reading the runs"):
        from mcprl.monitoring.run_tables import RunComparison

        found = [_find(run) for run in chosen]
    if as_json:
        _print_json(_comparison_json(found))
    else:
        Console(highlight=False).print(RunComparison(found), crop=False)


def _find(run: str) -> PastRun:
    """The run at a path, or else of that name below outputs."""
    from mcprl.training.past_runs import is_run, read_run

    named = _OUTPUTS / run
    return read_run(named if not is_run(Path(run)) and (is_run(named) or len(Path(run).parts) == 1) else Path(run))


@contextmanager
def _shown(what: str) -> Generator[Status]:
    """A word on a terminal's stderr about what is going on, since the libraries of training take seconds to load."""
    from rich.console import Console

    with Console(stderr=True, highlight=False).status(f"{what} …") as status:
        yield status


def _run_json(run: PastRun) -> dict[str, Any]:
    figures = run.figures()
    return {
        "name": run.name,
        "path": str(run.path),
        "state": run.state.value,
        "why": run.why or None,
        "pid": run.pid,
        "recipe": run.recipe or None,
        "model": run.model or None,
        "steps_done": run.steps_done,
        "steps_wanted": run.steps_wanted,
        **{name: figures[name] for name in ("reward_first", "reward_best", "reward_last")},
        "rewards": list(run.rewards),
        "success_rate": run.success_rate,
        "verdict": run.verdicts[0].severity.value if run.verdicts else None,
        "seconds": run.seconds,
        "started": run.started,
        "changed": run.changed,
        "checkpoints": [{"step": saved.step, "bytes": saved.bytes} for saved in run.checkpoints],
        "journaled_episodes": run.journaled,
        "size_bytes": run.size_bytes,
    }


def _details_json(run: PastRun, checkpoints: Sequence[Checkpoint | Damaged]) -> dict[str, Any]:
    from mcprl.monitoring.run_tables import next_command
    from mcprl.training.checkpoints import Damaged
    from mcprl.training.success import success_metrics

    return _run_json(run) | {
        "checkpoints": [
            {"name": seen.path.name, "whole": False, "why": seen.why}
            if isinstance(seen, Damaged)
            else {"name": seen.path.name, "whole": True, "step": seen.step, "bytes": seen.bytes}
            for seen in checkpoints
        ],
        "weights_version": next((int(version) for version in reversed(run.course("weights_version"))), None),
        "success": [asdict(metric) for metric in success_metrics(run.metrics)],
        "verdicts": [asdict(verdict) for verdict in run.verdicts],
        "changed_settings": run.changed_settings(),
        "files": dict(run.files),
        "next": next_command(run) or None,
    }


def _comparison_json(runs: Sequence[PastRun]) -> dict[str, Any]:
    """Lists have an entry a run, in the order in which the runs were named."""
    from mcprl.monitoring.run_tables import cautions, differing_settings

    figures = [run.figures() for run in runs]
    return {
        "runs": [str(run.path) for run in runs],
        "settings": differing_settings(runs),
        "figures": {name: [each[name] for each in figures] for name in figures[0]},
        "rewards": [run.points("reward") for run in runs],
        "cautions": cautions(runs),
    }


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
