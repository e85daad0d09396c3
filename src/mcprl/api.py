"""The Python API for scripts and notebooks: `mcprl.train` and `mcprl.evaluate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from mcprl.progress import Silent, Watcher
from mcprl.recipe import load_recipe

if TYPE_CHECKING:
    from mcprl.evaluation.results import Evaluation
    from mcprl.runs.summary import Summary

T = TypeVar("T")


def train(recipe: Path | str, *, settings: Sequence[str] = (), watcher: Watcher | None = None) -> Summary:
    """Train with a recipe, in a new run folder.

    >>> summary = mcprl.train("recipe.yaml", settings=["training.steps=3"])  # doctest: +SKIP
    >>> summary.as_dict()["updates"]  # doctest: +SKIP
    3
    """
    from mcprl.training.loop import train as train_run
    from mcprl.training.run import open_run

    config = load_recipe(Path(recipe), settings).for_rl()

    async def run() -> Summary:
        async with open_run(config, watcher or Silent()) as opened:
            return await train_run(opened)

    return _run(run)


def evaluate(
    recipe: Path | str,
    *,
    adapter: Path | str | None = None,
    tasks: Path | str | None = None,
    episodes: int = 1,
    settings: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> Evaluation:
    """Evaluate the recipe's model, or an adapter of it, on tasks; by default on the recipe's validation tasks.

    >>> after = mcprl.evaluate("recipe.yaml", adapter="outputs/hello/adapter", episodes=4)  # doctest: +SKIP
    """
    from mcprl.evaluation.harness import evaluate as play
    from mcprl.evaluation.harness import make_request

    request = make_request(
        Path(recipe),
        adapter=None if adapter is None else Path(adapter),
        tasks=None if tasks is None else Path(tasks),
        episodes=episodes,
        overrides=settings,
    )

    async def run() -> Evaluation:
        with TemporaryDirectory() as logs:
            return (await play(request, watcher or Silent(), logs=Path(logs))).evaluation

    return _run(run)


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine. If this thread already runs an event loop, as in a notebook, run it in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
