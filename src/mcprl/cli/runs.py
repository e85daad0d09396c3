"""`mcprl runs`: list runs, show one, compare several."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from mcprl.cli.commands import Commands
from mcprl.cli.options import AsJson
from mcprl.cli.printing import (
    duration,
    facts_table,
    plain_table,
    print_json,
    sparkline,
    try_command,
    verdict_text,
    words,
)

if TYPE_CHECKING:
    from rich.status import Status
    from rich.table import Table

    from mcprl.runs.checkpoints import Checkpoint, Damaged
    from mcprl.runs.past_runs import PastRun

_CURVE_WIDTH = 24
_MIN_RUN_WIDTH = 14
_STATE_STYLES = {
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "interrupted": "yellow",
    "unreadable": "bold red",
}
_RESUMABLE = ("stopped", "failed", "interrupted")
_FIGURES = {
    "steps": ("steps", ".0f"),
    "reward_first": ("reward, first step", "+.3f"),
    "reward_best": ("reward, best step", "+.3f"),
    "reward_last": ("reward, last step", "+.3f"),
    "reward_recent": ("reward, mean of last {recent}", "+.3f"),
    "success_recent": ("success, mean of last {recent}", ".0%"),
    "valid_calls_recent": ("valid calls, mean of last {recent}", ".0%"),
    "kl_mean": ("KL per token, mean", ".1e"),
    "step_s_mean": ("seconds per step", ".1f"),
    "tokens_per_s": ("sampled tokens per second", ".0f"),
    "episodes_lost": ("episodes lost, played again", ".0f"),
    "updates_skipped": ("updates skipped", ".0f"),
}


def next_command(run: PastRun) -> str:
    """The command to run next; empty if there is none."""
    if run.state.value in _RESUMABLE:
        return shlex.join(["mcprl", "resume", str(run.path)])
    if run.state.value == "finished":
        engine, is_model = str(run.config.get("engine", "")), "model" in run.files
        return try_command(run.path, engine=engine, whole_model=is_model)
    return ""


def _ending(run: PastRun) -> Text | None:
    """Why a run ended early or cannot be read, or what was wrong with its policy in the end."""
    state = run.state.value
    if run.why:
        fact = "cannot be read" if state == "unreadable" else state
        return words(f"{fact}: {run.why}", _STATE_STYLES.get(state, "red"))
    if state != "running" and run.verdicts and run.verdicts[0].severity.value == "bad":
        return words(f"{state}, but its last step was bad: {run.verdicts[0].what}", "red")
    return None


def differing_settings(runs: Sequence[PastRun]) -> dict[str, list[str]]:
    """Return the values of each setting that differs between the runs; – if a run has no such setting."""
    settings = [run.settings() for run in runs]
    paths = dict.fromkeys(path for each in settings for path in each if path != "name")
    rows = {path: [each.get(path, "–") for each in settings] for path in paths}
    return {path: row for path, row in rows.items() if len(set(row)) > 1}


def cautions(runs: Sequence[PastRun]) -> list[str]:
    """Return reasons why a comparison of these runs may be unfair."""
    found: list[str] = []
    differing = differing_settings(runs)
    if any(path.startswith("rewards.") for path in differing):
        found.append("the rewards are computed differently, so their values cannot be compared")
    if any(path.startswith("tasks.") for path in differing):
        found.append("the tasks differ: one run may have had easier ones")
    if "seed" in differing:
        found.append("the seeds differ: a part of every difference is chance")
    if len({run.steps_done for run in runs}) > 1:
        found.append("the numbers of steps differ: compare at the same step")
    return found


def run_list(runs: Sequence[PastRun], now: float, width: int) -> Iterator[RenderableType]:
    """Print a line per run, then why runs ended early or badly or cannot be read, and how to resume those that can."""
    wide = _run_table(runs, now, with_curve=True)
    fits = Console(width=10_000).measure(wide).maximum <= width
    yield wide if fits else _run_table(runs, now, with_curve=False)
    for run in runs:
        if (ending := _ending(run)) is not None:
            yield Text("\n") + words(run.name, "bold") + Text(" ") + ending
    stopped = [run for run in runs if run.state.value in _RESUMABLE]
    if stopped:
        yield Text("\nResume with:")
    for run in stopped:
        yield _command(f"  {next_command(run)}")


def _run_table(runs: Sequence[PastRun], now: float, *, with_curve: bool) -> Table:
    table = plain_table("run", "state", right=("steps", "reward"))
    for title in ("curve", "changed") if with_curve else ("changed",):
        table.add_column(title, no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.columns[1].no_wrap = True
    for run in runs:
        table.add_row(
            words(run.name),
            Text(run.state.value, style=_STATE_STYLES.get(run.state.value, "red")),
            f"{run.steps_done}/{run.steps_wanted if run.steps_wanted is not None else '?'}",
            " → ".join(f"{reward:+.2f}" for reward in (run.rewards[:1] + run.rewards[1:][-1:])) or "–",
            *([sparkline(run.rewards, _CURVE_WIDTH)] if with_curve else []),
            f"{duration(max(0.0, now - run.changed))} ago",
            decimal(run.size_bytes),
        )
    return table


def run_details(
    run: PastRun, checkpoints: Sequence[Checkpoint | Damaged], now: float | None = None
) -> Iterator[RenderableType]:
    """Show one run: progress, success, verdicts, verified checkpoints, settings, files, and the next command."""
    from mcprl.cli.console import success_table
    from mcprl.runs.summary import success_metrics

    state = run.state.value
    yield words(run.name, "bold") + Text(f"  {state}", style=_STATE_STYLES.get(state, "red"))
    yield facts_table(list(_facts(run, time.time() if now is None else now)))
    if (ending := _ending(run)) is not None:
        yield ending
    metrics = success_metrics(run.metrics)
    if metrics:
        yield Text()
        yield success_table(metrics)
    if run.verdicts:
        yield Text(f"\nverdicts on step {run.steps_done}", style="bold")
        yield from map(verdict_text, run.verdicts)
    if checkpoints:
        yield Text()
        yield _checkpoint_table(checkpoints)
    changed = run.changed_settings()
    if changed:
        table = plain_table("setting", "changed from its default to")
        for path, text in changed.items():
            table.add_row(words(path), words(text))
        yield Text()
        yield table
    files = plain_table("file or folder", right=("size",))
    for name, size in run.files.items():
        files.add_row(words(name), decimal(size))
    files.add_row("total", decimal(run.size_bytes), style="bold")
    yield Text()
    yield files
    if next_command(run):
        yield Text()
        yield _command(f"Next: {next_command(run)}")


def _facts(run: PastRun, now: float) -> Iterator[tuple[str, str]]:
    yield "folder", str(run.path)
    yield "recipe", run.recipe or "–"
    yield "model", run.model or "–"
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))
    yield "started", f"{started}, last change {duration(max(0.0, now - run.changed))} ago"
    if run.pid is not None:
        yield "process", str(run.pid)
    yield "steps", f"{run.steps_done} of {run.steps_wanted if run.steps_wanted is not None else '?'}"
    versions = run.course("weights_version")
    if versions:
        yield "weights", f"version {versions[-1]:.0f}"
    rewards, success = run.rewards, run.course("success_rate")
    if rewards:
        best, at = max((reward, -step) for step, reward in run.points("reward"))
        yield "reward", f"{rewards[0]:+.3f} → {rewards[-1]:+.3f}, best {best:+.3f} at step {-at}"
        yield "", sparkline(rewards, 48)
    if success:
        yield "success rate", f"{success[0]:.0%} → {success[-1]:.0%}"
    if run.metrics:
        yield "time", f"{duration(run.seconds)}, {run.seconds / len(run.metrics):.1f} s per step"
    if run.journaled:
        yield "journal", f"{run.journaled:,} finished episodes after the last checkpoint; resuming uses them"


def _checkpoint_table(checkpoints: Sequence[Checkpoint | Damaged]) -> Table:
    from mcprl.runs.checkpoints import Damaged

    table = plain_table("", "checkpoint", right=("size",))
    table.add_column("")
    for seen in checkpoints:
        if isinstance(seen, Damaged):
            table.add_row(Text("✗", style="bold red"), words(seen.path.name), "", words(f"damaged: {seen.why}"))
        else:
            table.add_row(Text("✓", style="green"), words(seen.path.name), decimal(seen.bytes), "checksums verified")
    return table


def run_comparison(runs: Sequence[PastRun], width: int) -> Iterator[RenderableType]:
    """Show runs side by side: settings that differ, figures, reward curves, and cautions."""
    from mcprl.runs.past_runs import RECENT_STEPS

    names = Counter(run.name for run in runs)
    titles = [run.name if names[run.name] == 1 else str(run.path) for run in runs]
    beside = max(1, (width - 26) // _MIN_RUN_WIDTH)
    differing = differing_settings(runs)
    measured = [run.figures() for run in runs]
    figures = {
        title.format(recent=RECENT_STEPS): [
            "–" if each[name] is None else format(each[name], form) for each in measured
        ]
        for name, (title, form) in _FIGURES.items()
    }
    if not differing:
        yield Text("The settings are the same.")
    for first, rows in (("setting", differing), ("figure", figures)):
        for start in range(0, len(runs) if rows else 0, beside):
            yield _side_by_side(first, rows, titles, slice(start, start + beside))
            yield Text()
    # All curves have the same scale on both axes.
    every = [reward for run in runs for reward in run.rewards]
    most = max(len(run.rewards) for run in runs)
    curves = plain_table("run", "reward over the steps")
    for title, run in zip(titles, runs, strict=True):
        length = min(most, width // 2) * len(run.rewards) // max(1, most)
        curves.add_row(words(title), sparkline(run.rewards, length, every))
    yield curves
    for caution in cautions(runs):
        yield Text(f"Caution: {caution}.", style="yellow")


def _side_by_side(first: str, rows: Mapping[str, Sequence[str]], titles: Sequence[str], chosen: slice) -> Table:
    table = plain_table(first, *titles[chosen])
    for name, cells in rows.items():
        table.add_row(words(name), *map(words, cells[chosen]))
    return table


def _command(text: str) -> Text:
    """Format a command for copying: on one line, however long."""
    line = words(text)
    line.no_wrap, line.overflow = True, "ignore"
    return line


_OUTPUTS = Path("outputs")
_RUN_HELP = "Run folder, or a name under outputs."

app = Commands("List runs, show one, compare several.")


@app.command("list")
def list_runs(
    outputs: Annotated[Path, typer.Argument(metavar="OUTPUTS", help="Folder of runs.")] = _OUTPUTS,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, the last changed first: state, steps, first and last reward, size."""
    with _status("reading the runs"):
        from mcprl.runs.past_runs import find_runs

        found = find_runs(outputs)
    console = Console(highlight=False)
    if as_json:
        print_json([_run_json(run) for run in found])
    elif found:
        console.print(Group(*run_list(found, time.time(), console.width)), crop=False)
    else:
        console.print(f"No runs in {outputs}. mcprl train RECIPE starts one.", markup=False, soft_wrap=True)


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(metavar="RUN", help=_RUN_HELP, show_default=False)], as_json: AsJson = False
) -> None:
    """Show a run: steps, rewards, verdicts, verified checkpoints, settings, and the next command."""
    with _status("reading the run") as status:
        from mcprl.runs.past_runs import verify_checkpoints

        found = _find(run)
        checkpoints = verify_checkpoints(found, lambda path: status.update(f"verifying {path.name} …"))
    if as_json:
        print_json(_details_json(found, checkpoints))
    else:
        Console(highlight=False).print(Group(*run_details(found, checkpoints)), crop=False)


@app.command("compare")
def compare_runs(
    chosen: Annotated[list[str], typer.Argument(metavar="RUN", help=_RUN_HELP, show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show runs side by side: the settings that differ, their figures, and their rewards over the steps."""
    from mcprl.errors import NoRunError

    if len(chosen) < 2:
        raise NoRunError("a comparison needs two runs", fix="give two or more of the runs that `mcprl runs list` shows")
    with _status("reading the runs"):
        found = [_find(run) for run in chosen]
    console = Console(highlight=False)
    if as_json:
        print_json(_comparison_json(found))
    else:
        console.print(Group(*run_comparison(found, console.width)), crop=False)


def _find(run: str) -> PastRun:
    """Return the run at a path, or else the run with that name in the folder outputs."""
    from mcprl.runs.past_runs import is_run, read_run

    named = _OUTPUTS / run
    return read_run(named if not is_run(Path(run)) and (is_run(named) or len(Path(run).parts) == 1) else Path(run))


@contextmanager
def _status(what: str) -> Generator[Status]:
    """Show a status line on stderr if it is a terminal."""
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
    from mcprl.runs.checkpoints import Damaged
    from mcprl.runs.summary import success_metrics

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
    """Compare runs as JSON. Lists have an entry per run, in the order of the command line."""
    figures = [run.figures() for run in runs]
    return {
        "runs": [str(run.path) for run in runs],
        "settings": differing_settings(runs),
        "figures": {name: [each[name] for each in figures] for name in figures[0]},
        "rewards": [run.points("reward") for run in runs],
        "cautions": cautions(runs),
    }
