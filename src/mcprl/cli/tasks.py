"""`mcprl tasks`: check task files before a step is spent on them, make new ones, and look at them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from mcprl.episodes.gold import Trial
    from mcprl.records import Task
    from mcprl.tools import ServerSpec, Tool, Toolbox

__all__ = ["app"]

_SHIPPED = ("fmp", "polygon", "tavily", "slack", "python")
_WORLD = re.compile(r"market-(\d+)")
# The tools are the same in every world: this one is used where no task names one.
_ANY_WORLD = 7

app = typer.Typer(help="Check, make and read task files.", no_args_is_help=True, rich_markup_mode=None)

_TaskFile = Annotated[Path, typer.Argument(metavar="FILE", help="Task file: JSONL, or SkyRL's rows.")]


@app.callback()
def tasks() -> None:
    """Check, make and read task files."""


@app.command("validate")
def validate_tasks(
    file: _TaskFile,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", metavar="FILE", help="File that must not share a task. May be repeated."),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option("--servers", help="mcpServers file; default: the five servers that ship with mcprl, offline."),
    ] = None,
    gold: Annotated[
        bool, typer.Option("--gold", help="Play each task's solution on the servers and show what it scores.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole report as JSON.")] = False,
) -> None:
    """Say what is wrong with a task file: unknown tools, drifted calls, checks nobody can pass, duplicates, leaks.

    Exits with 1 where something is.
    """
    import asyncio

    from rich.console import Console

    from mcprl.monitoring.task_tables import is_perfect, print_gold, print_report
    from mcprl.tasks import read_task_file
    from mcprl.tasks.validation import validate

    read = read_task_file(file)
    others = [read_task_file(path) for path in against or ()]
    tools, trials = asyncio.run(_ask_servers(read.tasks, servers, gold=gold))
    report = validate(read, tools, against=others)
    if as_json:
        played = {"gold": [_trial_json(trial) for trial in trials]} if gold else {}
        print(json.dumps(report.to_json() | played, indent=2))
    else:
        console = Console(highlight=False)
        print_report(console, report)
        if gold:
            print_gold(console, trials, len(read.tasks))
    failed = any(not is_perfect(trial) for trial in trials)
    raise typer.Exit(0 if report.fine and not failed else 1)


@app.command("generate")
def generate_tasks(
    out: Annotated[Path, typer.Option("--out", help="Folder for train.jsonl and validation.jsonl.")],
    world: Annotated[int, typer.Option("--world", metavar="SEED", help="Offline world that the tasks are about.")] = 7,
    train: Annotated[int, typer.Option("--train", min=1, help="Tasks to train on.")] = 400,
    validation: Annotated[int, typer.Option("--validation", min=1, help="Tasks to validate on.")] = 100,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"] | None,
        typer.Option("--difficulty", help="Make tasks of this difficulty only."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Make tasks of this family only; may be given several times."),
    ] = None,
    distractors: Annotated[
        int, typer.Option("--distractors", min=0, help="Tools on offer besides those a task needs.")
    ] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Another seed asks other questions of the same world.")] = 0,
) -> None:
    """Make tasks about an offline world, each with its solution. The same arguments give the same files."""
    from rich.console import Console

    from mcprl.errors import TaskFileError
    from mcprl.records import Difficulty
    from mcprl.tasks import write_tasks
    from mcprl.tasks.generation import generate

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TaskFileError(f"cannot make the folder {out}: {error.strerror}", fix="choose another place") from error
    with Console(stderr=True, highlight=False).status("making tasks …"):
        splits = generate(
            world,
            train=train,
            validation=validation,
            difficulties=tuple(Difficulty) if difficulty is None else (Difficulty(difficulty),),
            families=family or None,
            distractors=distractors,
            seed=seed,
        )
    console = Console(highlight=False)
    for name, made in zip(("train.jsonl", "validation.jsonl"), splits, strict=True):
        write_tasks(made, out / name)
        console.print(f"{out / name}: {len(made)} tasks", markup=False, soft_wrap=True)


@app.command("show")
def show_task(
    file: _TaskFile,
    task_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Task to show; left out: all, a line each.")
    ] = None,
) -> None:
    """Print a task, or list the tasks of a file."""
    from rich.console import Console

    from mcprl.cli.task_choice import choose_task
    from mcprl.monitoring.task_tables import print_task, print_task_list
    from mcprl.tasks import load_tasks

    console = Console(highlight=False)
    if task_id is None:
        print_task_list(console, load_tasks(file))
    else:
        print_task(console, choose_task(file, task_id))


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of one line of a task file."""
    from mcprl.tasks.lines import task_schema

    print(json.dumps(task_schema(), indent=2, ensure_ascii=False))


async def _ask_servers(
    tasks: Sequence[Task], servers: Path | None, *, gold: bool
) -> tuple[tuple[Tool, ...], tuple[Trial, ...]]:
    """The tools that the servers list and, with `gold`, what the solutions score, each in the world of its task."""
    from functools import partial

    from mcprl.cli.opening import shown_opening
    from mcprl.tools import Toolbox

    tools: tuple[Tool, ...] = ()
    trials: list[Trial] = []
    for world, members in _by_world(tasks, servers).items():
        specs, then = _specs(servers, world), "playing the solutions" if gold else "listing the tools"
        async with shown_opening(partial(Toolbox, specs), then) as toolbox:
            tools = tuple(toolbox.catalog)
            if not gold:
                break
            trials += await _play(members, toolbox)
    return tools, tuple(trials)


async def _play(tasks: Sequence[Task], toolbox: Toolbox) -> tuple[Trial, ...]:
    """Play the solutions of those tasks that have one and name no tool that nobody lists."""
    from mcprl.config import RewardsConfig
    from mcprl.episodes.gold import play_gold
    from mcprl.episodes.requirements import require_worlds

    playable = [
        task
        for task in tasks
        if task.solution is not None
        and all(name in toolbox.catalog for name in (*(task.tools or ()), *(state.tool for state in task.goal.state)))
    ]
    require_worlds(playable, toolbox)
    return await play_gold(playable, toolbox, RewardsConfig())


def _by_world(tasks: Sequence[Task], servers: Path | None) -> dict[int, list[Task]]:
    """The tasks by the seed of their world. Servers of the user's own are of one world, and say themselves which."""
    from mcprl.errors import BadValueError

    if servers is not None:
        return {_ANY_WORLD: list(tasks)}
    worlds: dict[int, list[Task]] = {}
    for task in tasks:
        named = _WORLD.fullmatch(task.world) if task.world is not None else None
        if task.world is not None and named is None:
            raise BadValueError(
                f"task {task.id!r} is about the world {task.world!r}, which no server of mcprl's own has",
                fix="write market-SEED, or name the servers of that world with --servers",
            )
        worlds.setdefault(int(named[1]) if named else _ANY_WORLD, []).append(task)
    return worlds


def _specs(servers: Path | None, world: int) -> Sequence[ServerSpec]:
    from functools import partial

    from mcprl.servers import make_server
    from mcprl.tools import ServerSpec, load_server_specs

    if servers is not None:
        return load_server_specs(servers, {})
    return [ServerSpec(name=name, make=partial(make_server, name, world=world)) for name in _SHIPPED]


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "task_id": trial.task_id,
        "reward": trial.reward,
        "parts": dict(trial.parts),
        "faults": [str(fault) for fault in trial.faults],
    }
