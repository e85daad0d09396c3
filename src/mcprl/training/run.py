"""Opens a run from its configuration. Cheap checks come first, then the servers, then the model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from mcprl.checks.health import Health
from mcprl.config import RunConfig
from mcprl.episodes import Collector, Demonstrator, require_solutions
from mcprl.episodes.stage import Stage, open_stage
from mcprl.learning import open_learner
from mcprl.learning.learner import Learner, OnGpu
from mcprl.learning.update import BatchLearner
from mcprl.placement import gpu_memories, place
from mcprl.processes import require_linux
from mcprl.progress import PackWatcher, Watcher
from mcprl.records import LostEpisode, Task, Trajectory, Weights
from mcprl.runs.checkpoints import Checkpoints, deals_of, forecast
from mcprl.runs.folder import RunFolder
from mcprl.runs.journal import EpisodeJournal
from mcprl.runs.resuming import Conditions, ResumePoint, compare_conditions
from mcprl.runs.summary import Summary
from mcprl.tasks import Deal, Dealer, load_tasks, make_order
from mcprl.tools.stats import calls_in, has_stats, read_stats
from mcprl.training.loop import GpuTurns, Run, StepClock
from mcprl.training.pipeline import CollectedStep, Pipeline, collect_step
from mcprl.training.sft import Examples, open_examples
from mcprl.training.shutdown import Shutdown


@asynccontextmanager
async def open_run(
    config: RunConfig,
    watcher: Watcher,
    *,
    folder: RunFolder | None = None,
    resume_point: ResumePoint | None = None,
    shutdown: Shutdown | None = None,
) -> AsyncGenerator[Run]:
    """Open a run in its folder, and check and start all its components. On exit, stop them.

    With `resume_point`, the run in `folder` resumes from that point. Without `shutdown`, the run cannot be asked to
    stop.
    """
    require_linux()
    tasks = load_tasks(config.tasks.train)
    held_out = load_tasks(config.tasks.validation) if config.sft and config.tasks.validation else ()
    order = make_order(tasks, config)
    require_solutions(tasks, config)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(folder or RunFolder.create(config))
        journal = EpisodeJournal(folder.journal)
        stack.push_async_callback(journal.close)
        earlier = (read_stats(folder.path),) if has_stats(folder.path) else ()
        opening = open_stage(config, (*tasks, *held_out), watcher, logs=folder.logs, earlier_calls=calls_in(earlier))
        stage = await stack.enter_async_context(opening)
        conditions = await asyncio.to_thread(Conditions.of, config, tasks + held_out, stage.toolbox.catalog, stage.code)
        if resume_point is None:
            conditions.write(folder.conditions)
        elif changed := compare_conditions(folder, resume_point, conditions):
            watcher.stage(f"rerunning the finished episodes, because of changes in {', '.join(changed)}")
            resume_point = replace(resume_point, journal_fits=False)
        examples = await open_examples(config, folder.examples, stage, tasks, held_out, watcher) if config.sft else None
        watcher.stage("loading the learner")
        learner, turns = await _open_learner(config, folder, stage, stack, watcher)
        deals = _open_deals(resume_point, tasks)
        collector, clock = stage.collector(config, journal), StepClock()
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
            earlier_figures=earlier,
            collector=collector,
            pipeline=_make_pipeline(config, order, collector, examples or stage.demonstrator, watcher, clock, deals),
            sampler=stage.sampler,
            learner=learner,
            health=Health(config, has_solutions=any(task.solution is not None for task in tasks)),
            summary=Summary(folder.path),
            clock=clock,
            kl_coefficient=config.algorithm.kl.coefficient,
            weights=Weights(version=0, adapter=config.model.adapter),
            examples=examples,
            turns=turns,
        )
        stack.push_async_callback(run.pipeline.close)
        watcher.stage(await _forecast(run))
        if resume_point is not None:
            await _restore(run, resume_point)
        watcher.stage(f"step {min(run.step + 1, config.training.steps)}")
        yield run


async def _open_learner(
    config: RunConfig, folder: RunFolder, stage: Stage, stack: AsyncExitStack, watcher: Watcher
) -> tuple[Learner, GpuTurns | None]:
    """Open the learner. If it takes turns with the sampler on the same GPUs, put the sampler to sleep first."""
    in_turns = place(config, len(gpu_memories())).in_turns
    if in_turns:
        await stage.sampler.sleep()
    opening = open_learner(config, folder=folder.weights, grammars=stage.grammars, engine=stage.engine)
    learner = await stack.enter_async_context(opening)
    if config.sends_weights:
        stage.sampler.receive_from(cast("OnGpu", learner).send)
    if isinstance(watcher, PackWatcher) and isinstance(learner, BatchLearner):
        learner.on_scored(partial(asyncio.get_running_loop().call_soon_threadsafe, watcher.pack_finished))
    return learner, GpuTurns(stage.sampler, cast("OnGpu", learner)) if in_turns else None


def _open_deals(resume_point: ResumePoint | None, tasks: Sequence[Task]) -> Mapping[int, Deal]:
    """Return the tasks chosen for steps that were being collected, if their episodes can still be used."""
    if resume_point is None or resume_point.state is None or not resume_point.journal_fits:
        return {}
    return deals_of(resume_point.state.open_deals, tasks)


def _make_pipeline(
    config: RunConfig,
    order: Dealer,
    collector: Collector,
    imitated: Demonstrator | Examples | None,
    watcher: Watcher,
    clock: StepClock,
    known_deals: Mapping[int, Deal],
) -> Pipeline:
    algorithm, training = config.algorithm, config.training

    def deal(step: int) -> Deal:
        stand_ins = order.stand_ins(step) if algorithm.refill_rounds else ()
        return Deal(tasks=order.deal(step), stand_ins=stand_ins)

    async def collect(step: int, deal: Deal) -> CollectedStep:
        def on_finished(outcome: Trajectory | LostEpisode) -> None:
            watcher.episode_finished(step, outcome)

        if isinstance(imitated, Examples):
            return CollectedStep(demonstrations=imitated.batch(step), demonstration_weight=1.0)
        with clock.span(step, "collect"):
            collected = await collect_step(deal, collector, step, algorithm, on_finished)
            weight = algorithm.warm_start.weight_at(step)
            if imitated is None or weight <= 0:
                return collected
            # Tasks of dropped groups are demonstrated too: a solution helps most if all attempts failed.
            tasks = [group.task for group in collected.all_groups]
            played = await imitated.play(tasks, step)
            return replace(collected, demonstrations=played, demonstration_weight=weight)

    return Pipeline(collect, deal, steps=training.steps, ahead=training.max_staleness, known_deals=known_deals)


async def _forecast(run: Run) -> str:
    """Describe the disk space that the checkpoints will need. Raises NoRoomError if there is too little."""
    there = sum(checkpoint.bytes for checkpoint in run.checkpoints.all())  # if the run is resumed
    free = shutil.disk_usage(run.folder.path).free + there
    kept = run.config.training.keep_checkpoints + Health.most_kept(run.config)
    return forecast(await run.learner.state_bytes(), kept, free)


async def _restore(run: Run, resume_point: ResumePoint) -> None:
    """Set the run to the state of its checkpoint."""
    records = run.folder.cut_to(resume_point.step)
    if lost := sum(not metrics for metrics, _ in records):
        run.watcher.stage(f"metrics.jsonl has no line for {lost} of {len(records)} steps; the summary omits them")
    for metrics, verdicts in records:
        run.summary.add(metrics, verdicts)
    run.step = run.saved_step = resume_point.step
    state = resume_point.state
    if resume_point.checkpoint is None or state is None:
        return
    run.watcher.stage(f"resuming after step {resume_point.step}")
    run.order.restore(state.order)
    run.health.restore(state.health)
    if not {"algorithm.kl.coefficient", "algorithm.kl.target"} & resume_point.changed.keys():
        run.kl_coefficient = state.kl_coefficient
    run.weights = await run.learner.load_state(resume_point.checkpoint.path)
    if run.turns is None:
        await run.sampler.publish(run.weights)
