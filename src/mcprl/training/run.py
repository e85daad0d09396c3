"""A run, put together from its configuration: cheap checks first, then servers, then the model."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mcprl.chat import Chat
from mcprl.config import RunConfig
from mcprl.episodes import (
    Collector,
    Demonstrator,
    RunsEpisodes,
    require_scorable,
    require_solutions,
    require_tools,
    require_worlds,
)
from mcprl.episodes.player import open_kit
from mcprl.errors import MissingExtraError
from mcprl.learners import Learner, open_learner
from mcprl.records import Task, Weights
from mcprl.samplers import Sampler
from mcprl.tasks import Deal, Dealer, load_tasks, make_order
from mcprl.tools import Toolbox, open_toolbox
from mcprl.tools.limits import LimitsDesk
from mcprl.tools.stats import StatsDocument
from mcprl.training.checkpoints import Checkpoints, forecast
from mcprl.training.conditions import Conditions
from mcprl.training.folder import RunFolder
from mcprl.training.health import Health
from mcprl.training.journal import EpisodeJournal
from mcprl.training.occupancy import MeteredSampler, Occupancy
from mcprl.training.resuming import Standing, take_up
from mcprl.training.shutdown import Shutdown
from mcprl.training.state import deals_of
from mcprl.training.summary import Summary
from mcprl.training.timeline import Timeline
from mcprl.training.watching import Watcher

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars
    from mcprl.skyrl.engine import SkyrlEngine

__all__ = ["Run", "Stage", "open_run", "open_stage"]


class ToolFigures(Protocol):
    """What became of the calls of a run, wherever its episodes are played."""

    @property
    def restarts(self) -> int: ...

    def stats(self) -> StatsDocument: ...


@dataclass(slots=True)
class Stage:
    """All that episodes need: tools and a sampler. `mcprl try` plays on it; training adds a learner.

    `grammars` is None where nothing is held to a grammar, `engine` where this machine computes, `demonstrator` where
    nothing is to be imitated. `toolbox` is this process's own, `figures` those of all that play.
    """

    toolbox: Toolbox
    figures: ToolFigures
    chat: Chat
    grammars: Grammars | None
    engine: SkyrlEngine | None
    sampler: MeteredSampler
    runner: RunsEpisodes
    demonstrator: Demonstrator | None


@dataclass(slots=True, kw_only=True)
class Run:
    """A training run, open: everything the loop needs, and where it stands.

    `step` counts the steps done, `saved_step` those that the newest checkpoint covers. `learning` is True from the
    beginning of an update until the step it belongs to is certain.
    """

    config: RunConfig
    conditions: Conditions
    folder: RunFolder
    checkpoints: Checkpoints
    journal: EpisodeJournal
    watcher: Watcher
    shutdown: Shutdown
    order: Dealer
    tool_figures: ToolFigures
    collector: Collector
    sampler: MeteredSampler
    learner: Learner
    demonstrator: Demonstrator | None
    weights: Weights
    kl_coefficient: float
    health: Health
    summary: Summary
    step: int = 0
    saved_step: int = 0
    open_deals: Mapping[int, Deal] = field(default_factory=dict[int, Deal])
    learning: bool = False
    learner_occupancy: Occupancy = field(default_factory=Occupancy)
    timeline: Timeline = field(default_factory=Timeline)
    step_ended: float = field(default_factory=time.monotonic)
    save_s: float = 0.0


@asynccontextmanager
async def open_run(
    config: RunConfig,
    watcher: Watcher,
    *,
    folder: RunFolder | None = None,
    standing: Standing | None = None,
    shutdown: Shutdown | None = None,
) -> AsyncGenerator[Run]:
    """Everything started and checked, in a folder of its own; everything ended on leaving.

    With `standing`, the run in `folder` goes on from there. Without `shutdown`, nothing asks it to stop.
    """
    tasks = load_tasks(config.tasks.train)
    order = make_order(tasks, config)
    require_solutions(tasks, config)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(folder or RunFolder.create(config))
        journal = EpisodeJournal(folder.journal)
        stack.push_async_callback(journal.close)
        stage = await stack.enter_async_context(open_stage(config, tasks, watcher, logs=folder.logs))
        conditions = await asyncio.to_thread(Conditions.of, config, tasks, stage.toolbox.catalog)
        if standing is None:
            conditions.write(folder.conditions)
        elif changed := take_up(folder, standing, conditions):
            watcher.stage(f"playing the finished episodes again, because of changes in {', '.join(changed)}")
            standing = replace(standing, journal_fits=False)
        watcher.stage("loading the learner")
        learner = await stack.enter_async_context(
            open_learner(config, folder=folder.weights, grammars=stage.grammars, engine=stage.engine)
        )
        run = Run(
            config=config,
            conditions=conditions,
            folder=folder,
            checkpoints=Checkpoints(folder.checkpoints),
            journal=journal,
            watcher=watcher,
            shutdown=shutdown or Shutdown(config.training.shutdown_s),
            order=order,
            tool_figures=stage.figures,
            collector=Collector(stage.runner, config.episodes, journal),
            sampler=stage.sampler,
            learner=learner,
            demonstrator=stage.demonstrator,
            weights=Weights(version=0),
            kl_coefficient=config.algorithm.kl.coefficient,
            health=Health(config),
            summary=Summary(),
        )
        watcher.stage(await _forecast(run))
        if standing is not None:
            await _restore(run, standing, tasks)
        run.step_ended = time.monotonic()
        yield run


async def _forecast(run: Run) -> str:
    """What the checkpoints will take of the disk. Raises NoRoomError where it has less."""
    there = sum(checkpoint.bytes for checkpoint in run.checkpoints.all())  # of a run that is resumed
    free = shutil.disk_usage(run.folder.path).free + there
    kept = run.config.training.keep_checkpoints + Health.most_kept(run.config)
    return forecast(await run.learner.state_bytes(), kept, free)


async def _restore(run: Run, standing: Standing, tasks: Sequence[Task]) -> None:
    """Let the run stand where its checkpoint says."""
    metrics, verdicts = run.folder.cut_to(standing.step)
    for of_step, on_step in zip(metrics, verdicts, strict=True):
        run.summary.add(of_step, on_step)
    run.step = run.saved_step = standing.step
    state = standing.state
    if standing.checkpoint is None or state is None:
        return
    run.watcher.stage(f"going on after step {standing.step}")
    run.order.restore(state.order)
    run.health.restore(state.health)
    if not {"algorithm.kl.coefficient", "algorithm.kl.target"} & standing.changed.keys():
        run.kl_coefficient = state.kl_coefficient
    run.open_deals = deals_of(state.open_deals, tasks) if standing.journal_fits else {}
    run.weights = await run.learner.load_state(standing.checkpoint.path)
    await run.sampler.publish(run.weights)


@asynccontextmanager
async def open_stage(
    config: RunConfig, tasks: Sequence[Task], watcher: Watcher, *, logs: Path
) -> AsyncGenerator[Stage]:
    """Servers started, every tool that a task names found, and only then the model loaded."""
    require_scorable(tasks, config.rewards)
    desk = _make_desk(config)
    async with AsyncExitStack() as stack:
        watcher.stage("starting the tool servers")
        toolbox = await stack.enter_async_context(open_toolbox(config.servers, log_dir=logs, limits=desk))
        require_tools(tasks, toolbox.catalog)
        require_worlds(tasks, toolbox)
        kit = await stack.enter_async_context(open_kit(config, toolbox, tasks=tasks, tell=watcher.stage))
        demonstrator = kit.demonstrator()
        engine = None
        if config.engine == "skyrl":
            watcher.stage(f"starting SkyRL ({config.skyrl.url or config.skyrl.backend})")
            engine = await stack.enter_async_context(make_engine(config, logs, watcher))
        else:
            watcher.stage(f"starting the sampler ({config.sampling.engine})")
        sampler = await stack.enter_async_context(MeteredSampler(make_sampler(config, logs, kit.grammars, engine)))
        runner, figures = kit.runner(sampler), toolbox
        if desk is not None:
            from mcprl.episodes.workers import RayWorkers

            watcher.stage(f"starting {config.workers.count} workers")
            workers = RayWorkers(config, sampler=sampler, desk=desk, toolbox=toolbox, logs=logs)
            runner = figures = await stack.enter_async_context(workers)
        yield Stage(
            toolbox=toolbox,
            figures=figures,
            chat=kit.chat,
            grammars=kit.grammars,
            engine=engine,
            sampler=sampler,
            runner=runner,
            demonstrator=demonstrator,
        )


def _make_desk(config: RunConfig) -> LimitsDesk | None:
    """The limits that all workers share; None where this process plays by itself."""
    if config.workers.kind == "local":
        return None
    from mcprl.episodes.workers import open_desk

    return open_desk(config)


def make_engine(config: RunConfig, logs: Path, watcher: Watcher) -> SkyrlEngine:
    """The engine that sampler and learner share. What its server keeps is beside the logs."""
    if importlib.util.find_spec("tinker") is None:
        raise MissingExtraError("engine is skyrl, which needs tinker", fix="install mcprl[skyrl]")
    from mcprl.skyrl.engine import SkyrlEngine

    return SkyrlEngine(config, folder=logs.parent / "skyrl", log=logs / "skyrl.log", tell=watcher.stage)


def make_sampler(
    config: RunConfig, logs: Path, grammars: Grammars | None, engine: SkyrlEngine | None = None
) -> Sampler:
    """The sampler of the configured engine. Its library is imported only here."""
    if engine is not None:
        from mcprl.samplers.skyrl import SkyrlSampler

        return SkyrlSampler(engine)
    if config.sampling.engine == "transformers":
        from mcprl.samplers.transformers import TransformersSampler

        return TransformersSampler(config.model, grammars)
    from mcprl.samplers.vllm import VllmSampler

    return VllmSampler(config.model, config.sampling, config.learner, log=logs / "vllm.log")
