"""A run, put together from its configuration: cheap checks first, then servers, then the model."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from mcprl.checks.health import Health
from mcprl.config import RunConfig
from mcprl.episodes import (
    Collector,
    Demonstrator,
    require_solutions,
)
from mcprl.episodes.stage import MeteredSampler, Occupancy, ToolFigures, open_stage
from mcprl.learning import Learner, open_learner
from mcprl.progress import Watcher
from mcprl.records import Task, Weights
from mcprl.runs.checkpoints import Checkpoints, deals_of, forecast
from mcprl.runs.folder import RunFolder, Timeline
from mcprl.runs.journal import EpisodeJournal
from mcprl.runs.resuming import Conditions, ResumePoint, compare_conditions
from mcprl.runs.summary import Summary
from mcprl.tasks import Deal, Dealer, load_tasks, make_order
from mcprl.training.shutdown import Shutdown

__all__ = ["Run", "open_run"]


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
    resume_point: ResumePoint | None = None,
    shutdown: Shutdown | None = None,
) -> AsyncGenerator[Run]:
    """Everything started and checked, in a folder of its own; everything ended on leaving.

    With `resume_point`, the run in `folder` goes on from there. Without `shutdown`, nothing asks it to stop.
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
        if resume_point is None:
            conditions.write(folder.conditions)
        elif changed := compare_conditions(folder, resume_point, conditions):
            watcher.stage(f"playing the finished episodes again, because of changes in {', '.join(changed)}")
            resume_point = replace(resume_point, journal_fits=False)
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
            shutdown=shutdown or Shutdown(),
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
        if resume_point is not None:
            await _restore(run, resume_point, tasks)
        run.step_ended = time.monotonic()
        yield run


async def _forecast(run: Run) -> str:
    """What the checkpoints will take of the disk. Raises NoRoomError where it has less."""
    there = sum(checkpoint.bytes for checkpoint in run.checkpoints.all())  # of a run that is resumed
    free = shutil.disk_usage(run.folder.path).free + there
    kept = run.config.training.keep_checkpoints + Health.most_kept(run.config)
    return forecast(await run.learner.state_bytes(), kept, free)


async def _restore(run: Run, resume_point: ResumePoint, tasks: Sequence[Task]) -> None:
    """Let the run stand where its checkpoint says."""
    metrics, verdicts = run.folder.cut_to(resume_point.step)
    for of_step, on_step in zip(metrics, verdicts, strict=True):
        run.summary.add(of_step, on_step)
    run.step = run.saved_step = resume_point.step
    state = resume_point.state
    if resume_point.checkpoint is None or state is None:
        return
    run.watcher.stage(f"going on after step {resume_point.step}")
    run.order.restore(state.order)
    run.health.restore(state.health)
    if not {"algorithm.kl.coefficient", "algorithm.kl.target"} & resume_point.changed.keys():
        run.kl_coefficient = state.kl_coefficient
    run.open_deals = deals_of(state.open_deals, tasks) if resume_point.journal_fits else {}
    run.weights = await run.learner.load_state(resume_point.checkpoint.path)
    await run.sampler.publish(run.weights)
