"""`mcprl try`: run a few episodes of a task and print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from mcprl.cli.options import (
    DEFAULT_KEY_ENV,
    Body,
    Endpoint,
    KeyEnv,
    MaxUsd,
    Overrides,
    PerMinute,
    Price,
    Recipe,
    endpoint_settings,
    temporary_logs,
)
from mcprl.cli.printing import printable, words
from mcprl.cli.stages import StageConsole, loading_libraries

if TYPE_CHECKING:
    from mcprl.config import RunConfig
    from mcprl.episodes.endpoint import EndpointSettings
    from mcprl.records import Task, Trajectory

__all__ = ["command", "print_transcript"]

_LABEL_WIDTH = 18
_MIN_WIDTH = 20


def print_transcript(
    task: Task, trajectory: Trajectory, console: Console | None = None, *, timings: bool = True
) -> None:
    """Print the task, then each turn with its calls and results, then the reward and its parts.

    Without timings, an episode always prints the same text.
    """
    console = console or Console(highlight=False)
    title = words(f"task {task.id}, episode {trajectory.member}")
    console.rule(title, align="left", style="dim")
    for message in task.prompt:
        _say(console, message["role"], message["content"], "bold")
    for turn in trajectory.turns:
        _say(console, "model", turn.text.strip(), "cyan")
        for seen in turn.observations:
            took = f", {1000 * seen.latency_s:.0f} ms" if timings else ""
            style = "green" if seen.worked else "red"
            _say(console, f"{seen.server or 'mcprl'}{took}", seen.text, style)
        for message in turn.follow_up:
            _say(console, message["role"], message["content"], "bold")
    parts = {name: round(value, 3) for name, value in trajectory.reward_parts.items()}
    read, sampled = trajectory.token_counts
    console.print(
        Text.assemble(
            ("reward ", "dim"),
            (f"{trajectory.reward:+.3f}", "bold"),
            (f"  {trajectory.stop.value}  {json.dumps(parts)}", "dim"),
            (f"  {sampled} of {read + sampled} tokens sampled", "dim"),
        )
    )
    console.print()


def _say(console: Console, who: str, text: str, style: str) -> None:
    body = words(text, style)
    label = printable(who)
    for line in body.wrap(console, max(_MIN_WIDTH, console.width - _LABEL_WIDTH - 3)) or [body]:
        console.print(Text.assemble((f"{label:>{_LABEL_WIDTH}} │ ", "dim"), line))
        label = ""


def command(  # noqa: PLR0913 - each is an option of the command line
    recipe: Recipe,
    task: Annotated[str, typer.Option("--task", help="Id of the task; default: the first one.")] = "",
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="Number of episodes.")] = 1,
    adapter: Annotated[Path | None, typer.Option("--adapter", exists=True, help="Adapter from an earlier run.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Name of the model at --endpoint.")] = None,
    endpoint: Endpoint = None,
    key_env: KeyEnv = DEFAULT_KEY_ENV,
    price: Price = None,
    max_usd: MaxUsd = None,
    per_minute: PerMinute = None,
    body: Body = None,
    overrides: Overrides = None,
) -> None:
    """Let the model attempt a task and print the conversation: the model's text and calls, and the tools' results."""
    import asyncio

    from mcprl.cli.options import choose_task
    from mcprl.errors import BadValueError
    from mcprl.recipe import load_recipe
    from mcprl.samplers.model_folder import adapter_settings, check_base_model

    player = endpoint_settings(endpoint, model, key_env, price, max_usd, per_minute, body)
    if (player is None) != (model is None) or (player is not None and adapter is not None):
        raise BadValueError(
            "--model needs --endpoint and excludes --adapter", fix="give --endpoint and --model, without --adapter"
        )
    config = load_recipe(recipe, [*(overrides or []), *adapter_settings(adapter)])
    check_base_model(adapter, config.model.path)
    chosen = choose_task(config.tasks.train, task)
    for trajectory in asyncio.run(_play(config, chosen, episodes, adapter, player)):
        print_transcript(chosen, trajectory)


async def _play(
    config: RunConfig, task: Task, episodes: int, adapter: Path | None, player: EndpointSettings | None
) -> tuple[Trajectory, ...]:
    with loading_libraries():
        from mcprl.concurrency import run_all
        from mcprl.evaluation.harness import Request, open_runner
        from mcprl.evaluation.outcomes import TaskSuite

    suite = TaskSuite(config.name, [task])
    request = Request(config=config, suite=suite, episodes=episodes, adapter=adapter, endpoint=player)
    with temporary_logs() as logs, StageConsole() as console:
        async with open_runner(request, [task], console, logs) as (runner, _, _, _):
            console.stage(f"running {episodes} episode{'s' if episodes > 1 else ''} of task {task.id}")
            return await run_all(runner.run(task, step=0, member=n, attempt=0) for n in range(episodes))
