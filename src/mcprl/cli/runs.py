"""`mcprl runs`: list runs, and show one."""

from __future__ import annotations

import shlex
import time
from collections.abc import Generator, Iterator, Sequence
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
from mcprl.cli.printing import duration, facts_table, plain_table, print_json, try_command, verdict_text, words

if TYPE_CHECKING:
    from rich.status import Status
    from rich.table import Table

    from mcprl.runs.checkpoints import Checkpoint, Damaged
    from mcprl.runs.past_runs import PastRun

_STATE_STYLES = {
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "interrupted": "yellow",
    "unreadable": "bold red",
}
_RESUMABLE = ("stopped", "failed", "interrupted")


def next_command(run: PastRun) -> str:
    """Return the command to run next, or an empty string if there is none."""
    if run.state.value in _RESUMABLE:
        return shlex.join(["mcprl", "resume", str(run.path)])
    if run.state.value == "finished":
        engine, is_model = str(run.config.get("engine", "")), "model" in run.files
        return try_command(run.path, engine=engine, whole_model=is_model)
    return ""


def _ending(run: PastRun) -> Text | None:
    """Return why a run ended early or cannot be read, or what was wrong with its policy at the end."""
    state = run.state.value
    if run.why:
        fact = "cannot be read" if state == "unreadable" else state
        return words(f"{fact}: {run.why}", _STATE_STYLES.get(state, "red"))
    if state != "running" and run.verdicts and run.verdicts[0].severity.value == "bad":
        return words(f"{state}, but its last step was bad: {run.verdicts[0].what}", "red")
    return None


def run_list(runs: Sequence[PastRun], now: float) -> Iterator[RenderableType]:
    """Yield a line per run, then notes on runs that ended early, ended badly or are unreadable, then the commands to
    resume runs."""
    yield _run_table(runs, now)
    for run in runs:
        if (ending := _ending(run)) is not None:
            yield Text("\n") + words(run.name, "bold") + Text(" ") + ending
    stopped = [run for run in runs if run.state.value in _RESUMABLE]
    if stopped:
        yield Text("\nResume with:")
    for run in stopped:
        yield _command(f"  {next_command(run)}")


def _run_table(runs: Sequence[PastRun], now: float) -> Table:
    table = plain_table("run", "state", right=("steps", "reward"))
    table.add_column("changed", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.columns[1].no_wrap = True
    for run in runs:
        table.add_row(
            words(run.name),
            Text(run.state.value, style=_STATE_STYLES.get(run.state.value, "red")),
            f"{run.steps_done}/{run.steps_wanted if run.steps_wanted is not None else '?'}",
            " → ".join(f"{reward:+.2f}" for reward in (run.rewards[:1] + run.rewards[1:][-1:])) or "–",
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
        table = plain_table("setting", "changed from default to")
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
    if success:
        yield "success rate", f"{success[0]:.0%} → {success[-1]:.0%}"
    if run.metrics:
        yield "time", f"{duration(run.seconds)}, {run.seconds / len(run.metrics):.1f} s per step"
    if run.journaled:
        yield "journal", f"{run.journaled:,} episodes finished after the last checkpoint; a resumed run uses them"


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


def _command(text: str) -> Text:
    """Format a command for copying: on one line, however long."""
    line = words(text)
    line.no_wrap, line.overflow = True, "ignore"
    return line


_OUTPUTS = Path("outputs")
_RUN_HELP = "Folder of the run, or its name under outputs."

app = Commands("List runs, or show one.")


@app.command("list")
def list_runs(
    outputs: Annotated[Path, typer.Argument(metavar="OUTPUTS", help="Folder that contains the runs.")] = _OUTPUTS,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder with state, steps, first and last reward, and size; most recently changed first."""
    with _status("reading the runs"):
        from mcprl.runs.past_runs import find_runs

        found = find_runs(outputs)
    console = Console(highlight=False)
    if as_json:
        print_json([_run_json(run) for run in found])
    elif found:
        console.print(Group(*run_list(found, time.time())), crop=False)
    else:
        console.print(f"No runs in {outputs}. Start one with `mcprl train RECIPE`.", markup=False, soft_wrap=True)


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
        "reward_first": run.rewards[0] if run.rewards else None,
        "reward_best": max(run.rewards, default=None),
        "reward_last": run.rewards[-1] if run.rewards else None,
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
