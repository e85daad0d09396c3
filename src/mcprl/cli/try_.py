"""`mcprl try`: a few episodes of a task, printed for a person to read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.config import RunConfig
    from mcprl.records import Task, Trajectory

__all__ = ["command"]


def command(
    recipe: Recipe,
    task: Annotated[str, typer.Option("--task", help="Id of the task; the first one if left out.")] = "",
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many attempts.")] = 1,
    adapter: Annotated[Path | None, typer.Option("--adapter", exists=True, help="Adapter of an earlier run.")] = None,
    overrides: Overrides = None,
) -> None:
    """Let the model play a task and print the conversation: its words, its calls, what the tools answered."""
    import asyncio

    from mcprl.cli.task_choice import choose_task
    from mcprl.monitoring.transcript import print_transcript
    from mcprl.recipe import load_recipe

    config = load_recipe(recipe, overrides or [])
    chosen = choose_task(config.tasks.train, task)
    for trajectory in asyncio.run(_play(config, chosen, episodes, adapter)):
        print_transcript(chosen, trajectory)


async def _play(config: RunConfig, task: Task, episodes: int, adapter: Path | None) -> tuple[Trajectory, ...]:
    from mcprl.concurrency import run_all
    from mcprl.monitoring.console import StageConsole
    from mcprl.records import Weights
    from mcprl.training.run import open_stage

    with tempfile.TemporaryDirectory(prefix="mcprl-try-") as folder, StageConsole() as console:
        async with open_stage(config, [task], console, logs=Path(folder) / "logs") as stage:
            if adapter is not None:
                await stage.sampler.publish(Weights(version=1, adapter=adapter))
            console.stage(f"playing {episodes} episode{'s' if episodes > 1 else ''} of {task.id}")
            return await run_all(stage.runner.run(task, step=0, member=n, attempt=0) for n in range(episodes))
