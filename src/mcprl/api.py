"""The Python API for scripts and notebooks: `mcprl.train`, `mcprl.resume` and `mcprl.evaluate`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from mcprl.progress import Silent, Step, Watcher
from mcprl.recipe import load_recipe
from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Verdict

if TYPE_CHECKING:
    from mcprl.config import RunConfig
    from mcprl.evaluation.results import Evaluation
    from mcprl.runs.folder import RunFolder
    from mcprl.runs.resuming import ResumePoint
    from mcprl.runs.summary import Summary
    from mcprl.training.shutdown import Shutdown

T = TypeVar("T")
U = TypeVar("U")
WatchesSteps = Callable[[AsyncIterator[Step]], Awaitable[None]]
WatchesEpisodes = Callable[[AsyncIterator[Trajectory | LostEpisode]], Awaitable[None]]


def train(
    recipe: Path | str | RunConfig, *, settings: Sequence[str] = (), watch: WatchesSteps | None = None
) -> Summary:
    """Train with a recipe (a file, or a RunConfig made in Python) in a new run folder, `summary.folder`.

    `watch` gets each finished step. Ctrl-C or an exception in `watch` stops the run: it saves its state and raises
    RunStopped or that exception. `mcprl.resume` can continue it.

    >>> async def watch(steps):
    ...     async for step in steps:
    ...         print(step.index, step.metrics["reward"], step.verdict)
    >>> summary = mcprl.train("recipe.yaml", settings=["training.steps=3"], watch=watch)  # doctest: +SKIP
    """
    from mcprl.runs.folder import RunFolder

    config = load_recipe(_path(recipe), settings).for_rl()
    return _train(config, RunFolder.create(config), None, watch)


def resume(run: Path | str, *, settings: Sequence[str] = (), watch: WatchesSteps | None = None) -> Summary:
    """Continue a run that ended early, from its newest valid checkpoint, as `mcprl resume` does.

    >>> summary = mcprl.resume("outputs/hello")  # doctest: +SKIP
    """
    from mcprl.runs.folder import RunFolder
    from mcprl.runs.resuming import find_resume_point

    with closing(RunFolder.open(Path(run))) as folder:
        resume_point = find_resume_point(folder, settings)
        return _train(resume_point.config, folder, resume_point, watch)


def evaluate(
    recipe: Path | str | RunConfig,
    *,
    adapter: Path | str | None = None,
    tasks: Path | str | None = None,
    episodes: int = 1,
    settings: Sequence[str] = (),
    watch: WatchesEpisodes | None = None,
) -> Evaluation:
    """Evaluate the recipe's model, or an adapter for it, on a task file; by default, on the recipe's validation tasks.

    `watch` gets each finished episode, and each attempt lost to an infrastructure fault, which is run again.

    >>> after = mcprl.evaluate("recipe.yaml", adapter="outputs/hello/adapter", episodes=4)  # doctest: +SKIP
    """
    from mcprl.evaluation.harness import evaluate as play
    from mcprl.evaluation.harness import make_request

    request = make_request(
        _path(recipe),
        adapter=None if adapter is None else Path(adapter),
        tasks=None if tasks is None else Path(tasks),
        episodes=episodes,
        overrides=settings,
    )

    async def run() -> Evaluation:
        events = _Episodes()
        with TemporaryDirectory() as logs:
            playing = asyncio.ensure_future(play(request, events, logs=Path(logs)))
            played = await events.watched(watch, playing, playing.cancel)
            return played.evaluation

    return _run(run)


async def train_in(
    config: RunConfig, folder: RunFolder, watcher: Watcher, shutdown: Shutdown, resume_point: ResumePoint | None = None
) -> Summary:
    """Train in a folder, with the trackers of the recipe, from the start or from a resume point.

    Raises RunStopped if the run is asked to stop, by a signal or by `shutdown`.
    """
    from mcprl.runs.folder import RunStopped
    from mcprl.tracking.delivery import Trackers
    from mcprl.training.loop import train as train_run
    from mcprl.training.run import open_run

    summary: Summary | None = None
    with shutdown.on_signals():
        trackers = Trackers(config, watcher, is_stopping=lambda: shutdown.requested)
        try:
            # Trackers end last: they send the rest while servers and sampler are being stopped.
            async with (
                trackers,
                open_run(config, trackers, folder=folder, resume_point=resume_point, shutdown=shutdown) as run,
            ):
                await trackers.start(folder.path)
                summary = await train_run(run)
                trackers.run_ended(summary.as_dict())
        except asyncio.CancelledError:
            # If cancelled during startup, there is nothing to save; if cancelled while closing, everything is saved.
            if summary is None:
                raise RunStopped(f"stopped by {shutdown.cause} before the first step") from None
    return summary


def _train(
    config: RunConfig, folder: RunFolder, resume_point: ResumePoint | None, watch: WatchesSteps | None
) -> Summary:
    from mcprl.runs.folder import RunStopped
    from mcprl.training.shutdown import Shutdown

    shutdown = Shutdown(on_request=lambda cause: folder.record_end(RunStopped(f"stopped by {cause}")))

    async def run() -> Summary:
        events = _Steps()
        training = train_in(config, folder, events, shutdown, resume_point)
        return await events.watched(watch, training, lambda: shutdown.request("watch"))

    try:
        with folder, closing(shutdown):
            return _run(run, lambda: shutdown.request("Ctrl-C"))
    except RunStopped as stopped:
        raise RunStopped(f"{stopped}. Resume with mcprl.resume({str(folder.path)!r})") from None


class _Events(Silent, Generic[T]):
    """The events of a run, as an async iterator for `watch`."""

    def __init__(self) -> None:
        self._events = asyncio.Queue[T | None]()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        event = await self._events.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def put(self, event: T | None) -> None:
        self._events.put_nowait(event)

    async def watched(
        self, watch: Callable[[Self], Awaitable[None]] | None, work: Awaitable[U], stop: Callable[[], object]
    ) -> U:
        """Return the result of `work`, while `watch` gets events. If `watch` raises, call `stop` and re-raise it."""
        if watch is None:
            return await work

        async def watching() -> None:
            try:
                await watch(self)
            except Exception:
                stop()
                raise

        watcher = asyncio.ensure_future(watching())
        try:
            return await work
        finally:
            self.put(None)
            await watcher


class _Steps(_Events[Step]):
    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        self.put(Step(step, metrics, tuple(verdicts)))


class _Episodes(_Events[Trajectory | LostEpisode]):
    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self.put(outcome)


def _path(recipe: Path | str | RunConfig) -> Path | RunConfig:
    return Path(recipe) if isinstance(recipe, str) else recipe


def _run(work: Callable[[], Coroutine[Any, Any, T]], stop: Callable[[], object] | None = None) -> T:
    """Run a coroutine. If this thread already runs an event loop, as in a notebook, run it in another thread.

    In that case, Ctrl-C calls `stop` or, if there is none, cancels the coroutine.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    started, watched = Future[Callable[[], object]](), Event()

    async def main() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        started.set_result(partial(loop.call_soon_threadsafe, stop or task.cancel))
        return await work()

    def run() -> T:
        watched.wait()  # until an interrupt is handled below
        return asyncio.run(main())

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run)
        try:
            watched.set()
            # A signal between Python's last look and the wait would be handled only after the wait.
            while not running.done():
                wait((running,), timeout=0.5)
        except KeyboardInterrupt:
            started.result()()
        except BaseException:
            started.result()()
            raise  # once the work has ended: leaving the executor waits for it
        return running.result()
