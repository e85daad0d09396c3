"""The market on the command line: `mcprl serve fmp`, … and `mcprl tasks generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mcprl.cli.serve import Http, Port, serve_by_name

_World = Annotated[
    int | None, typer.Option("--world", metavar="SEED", help="Serve the offline world with this seed; no key needed.")
]


def fmp(world: _World = None, http: Http = False, port: Port = 8000) -> None:
    """Stocks from Financial Modeling Prep (FMP_API_KEY), or offline."""
    serve_by_name("fmp", http, port, world=world)


def polygon(world: _World = None, http: Http = False, port: Port = 8000) -> None:
    """Stocks from Polygon (POLYGON_API_KEY), or offline."""
    serve_by_name("polygon", http, port, world=world)


def tavily(world: _World = None, http: Http = False, port: Port = 8000) -> None:
    """Web search by Tavily (TAVILY_API_KEY), or offline."""
    serve_by_name("tavily", http, port, world=world)


def slack(
    world: _World = None,
    post_for_real: Annotated[
        bool,
        typer.Option(
            "--post-for-real", help="Really post messages to Slack; without this option they are only simulated."
        ),
    ] = False,
    http: Http = False,
    port: Port = 8000,
) -> None:
    """Channels and messages of Slack (SLACK_BOT_TOKEN), or offline."""
    serve_by_name("slack", http, port, world=world, post_for_real=post_for_real)


def python(
    world: Annotated[
        int | None,
        typer.Option("--world", metavar="SEED", help="Seed to include in the server's version; no other effect."),
    ] = None,
    allow_unsafe: Annotated[
        bool, typer.Option("--allow-unsafe", help="Run code even if the sandbox cannot protect this machine.")
    ] = False,
    http: Http = False,
    port: Port = 8000,
) -> None:
    """Python code execution."""
    serve_by_name("python", http, port, world=world, allow_unsafe=allow_unsafe)


def generate(
    out: Annotated[Path, typer.Option("--out", help="Folder for train.jsonl and validation.jsonl.")],
    world: Annotated[int, typer.Option("--world", metavar="SEED", help="Seed of the tasks' offline world.")] = 7,
    train: Annotated[int, typer.Option("--train", min=1, help="Number of training tasks.")] = 400,
    validation: Annotated[int, typer.Option("--validation", min=1, help="Number of validation tasks.")] = 100,
    difficulty: Annotated[
        Literal["easy", "medium", "hard"] | None,
        typer.Option("--difficulty", help="Generate only tasks of this difficulty."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Generate only tasks of this family. May be repeated."),
    ] = None,
    distractors: Annotated[
        int,
        typer.Option("--distractors", min=0, help="Number of tools to offer in addition to those that a task needs."),
    ] = 3,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", help="Seed of the questions; a different seed gives different questions about the same world."
        ),
    ] = 0,
) -> None:
    """Make tasks about an offline world, each with its solution. The same arguments give the same files."""
    from rich.console import Console

    from mcprl.errors import TaskFileError
    from mcprl.records import Difficulty
    from mcprl.tasks import write_tasks
    from mcprl_market.generation import generate as make_tasks

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TaskFileError(f"cannot create the folder {out}: {error.strerror}", fix="choose another folder") from error
    with Console(stderr=True, highlight=False).status("generating tasks …"):
        splits = make_tasks(
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
