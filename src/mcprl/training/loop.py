"""The loop: collect groups, make a batch, learn from it, publish the new weights, save, until the steps are done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from mcprl.algorithms import make_batch, next_coefficient
from mcprl.episodes import episode_metrics, succeeded
from mcprl.records import Batch, LostEpisode, Trajectory, Update
from mcprl.tasks import Deal
from mcprl.tools.stats import write_stats
from mcprl.training.collecting import CollectedStep, collect_step
from mcprl.training.folder import StepRecord
from mcprl.training.pipeline import Pipeline
from mcprl.training.resources import resource_metrics
from mcprl.training.run import Run
from mcprl.training.saving import save_run
from mcprl.training.shutdown import RunStopped
from mcprl.training.summary import Summary

__all__ = ["train"]

# Of the time between a signal and the end: until then episodes may finish, and until then an update may.
_EPISODES_SHARE, _UPDATE_SHARE = 0.3, 0.6


async def train(run: Run) -> Summary:
    """Train to the end of the schedule and leave the weights and a summary in the run's folder.

    Raises RunStopped where the run was asked to stop, and has saved itself.
    """
    training = run.config.training
    pipeline = Pipeline(
        lambda step, deal: _collect(run, step, deal),
        lambda step: _deal(run, step),
        steps=training.steps,
        ahead=0 if training.pipeline == "sync" else training.max_staleness,
        known_deals=run.open_deals,
    )
    with run.shutdown.orderly():
        try:
            while run.step < training.steps:
                await _make_step(run, pipeline)
        except RunStopped:
            raise RunStopped(await _leave(run, pipeline)) from None
        finally:
            await pipeline.close()
        run.folder.record_spans(run.timeline.take())
        run.folder.finish(await run.learner.fetch(run.weights), run.summary.as_dict())
    return run.summary


async def _make_step(run: Run, pipeline: Pipeline) -> None:
    step, shutdown = run.step, run.shutdown
    if shutdown.requested:
        raise RunStopped
    taken = await shutdown.unless_stopped(pipeline.take(step), share=0.0)
    played = taken.collected.all_groups
    metrics = episode_metrics(played, taken.collect_s) | taken.collected.metrics | {"wait_s": taken.wait_s}
    run.learning = True  # and still so where this is broken off: then the learner is no longer where the step began
    batch, update = await shutdown.unless_stopped(_learn(run, taken.collected), share=_UPDATE_SHARE)
    with run.timeline.span(step, "publish"):
        await _publish(run, update)
    run.learning = False
    run.order.note({g.task.id: [succeeded(t.reward_parts) for t in g.trajectories] for g in played})
    metrics |= {**update.metrics, **_course_metrics(run), **await resource_metrics()}
    run.health.note_losses(played)
    verdicts = run.health.judge(metrics, update.skipped)
    record = StepRecord(
        played=played,
        batch=batch,
        ratios=update.ratios,
        spans=run.timeline.take(),
        metrics=metrics,
        verdicts=verdicts,
    )
    await asyncio.to_thread(run.folder.record_step, step, record)
    write_stats(run.folder.path, run.tool_figures.stats())
    run.summary.add(metrics, verdicts)
    run.step = step + 1
    if run.step % run.config.training.checkpoint_every == 0 or run.step == run.config.training.steps:
        await save_run(run, pipeline.open_deals)
    run.watcher.step_finished(step, metrics, verdicts)


async def _leave(run: Run, pipeline: Pipeline) -> str:
    """After a request to stop: let episodes finish for a while, save what is not saved yet, and say where it stands."""
    run.watcher.stage("stopping: letting episodes finish, saving")
    try:
        await run.shutdown.unless_stopped(run.collector.drain(), share=_EPISODES_SHARE)
    except RunStopped:
        await pipeline.close()  # those that have not finished are given up
    if not run.learning and run.saved_step != run.step:
        await save_run(run, pipeline.open_deals)
    journaled = sum(len(run.journal.finished(step)) for step in run.journal.steps if step >= run.saved_step)
    return (
        f"stopped after step {run.step} of {run.config.training.steps}; the checkpoint of step {run.saved_step} and "
        f"{journaled} finished episodes after it are saved"
        + (", the update under way is made again" if run.learning else "")
    )


def _deal(run: Run, step: int) -> Deal:
    stand_ins = run.order.stand_ins(step) if run.config.algorithm.dead_groups == "refill" else ()
    return Deal(tasks=run.order.deal(step), stand_ins=stand_ins)


async def _collect(run: Run, step: int, deal: Deal) -> CollectedStep:
    def on_finished(outcome: Trajectory | LostEpisode) -> None:
        run.watcher.episode_finished(step, outcome)

    with run.timeline.span(step, "collect"):
        return await collect_step(deal, run.collector, step, run.config.algorithm, on_finished)


async def _learn(run: Run, collected: CollectedStep) -> tuple[Batch, Update]:
    with run.learner_occupancy.working(), run.timeline.span(run.step, "update"):
        batch = await _batch_of(run, collected)
        return batch, await run.learner.update(batch)


async def _batch_of(run: Run, collected: CollectedStep) -> Batch:
    """The batch of a step, with what the learner says of its groups and what is to be imitated beside them."""
    groups, step = collected.groups, run.step
    algorithm = run.config.algorithm
    trajectories = [t for group in groups for t in group.trajectories]
    _refuse_stale(run, trajectories)
    demonstrations: tuple[Trajectory, ...] = ()
    weight = algorithm.warm_start.weight_at(step)
    if run.demonstrator is not None and weight > 0:
        # Also of tasks that were left out of the batch: where all attempts failed, a solution is worth most.
        demonstrations = await run.demonstrator.play([group.task for group in collected.all_groups], step)
    return make_batch(
        step,
        groups,
        algorithm,
        await run.learner.read(trajectories),
        kl_coefficient=run.kl_coefficient,
        demonstrations=demonstrations,
        demonstration_weight=weight,
    )


def _refuse_stale(run: Run, trajectories: list[Trajectory]) -> None:
    """The pipeline opens no step too early, so this holds; what it would break is the objective."""
    training = run.config.training
    bound = run.weights.version - (training.max_staleness if training.pipeline == "async" else 0)
    for trajectory in trajectories:
        versions = [v for v, sampled in zip(trajectory.weights_version, trajectory.sampled, strict=True) if sampled]
        if min(versions) < bound:
            raise ValueError(
                f"episode {trajectory.task_id}/{trajectory.member} of step {trajectory.step} has tokens of version "
                f"{min(versions)}, older than {bound}"
            )


async def _publish(run: Run, update: Update) -> None:
    """Let the sampler have new weights, where there are any, and steer by how far they have moved."""
    if update.weights.version != run.weights.version:
        run.weights = update.weights
        if not run.shutdown.requested:  # one that is about to stop samples nothing more
            await run.shutdown.unless_stopped(run.sampler.publish(update.weights), share=_UPDATE_SHARE)
        run.folder.drop_old_weights(run.weights)
    kl = run.config.algorithm.kl
    if kl.target is not None and "kl_reference" in update.metrics:
        run.kl_coefficient = next_coefficient(
            run.kl_coefficient, update.metrics["kl_reference"], target=kl.target, horizon=kl.horizon
        )


def _course_metrics(run: Run) -> Mapping[str, float]:
    """How the run gets along: from the end of the last step to now."""
    now = time.monotonic()
    step_s, run.step_ended = now - run.step_ended, now
    return {
        "weights_version": float(run.weights.version),
        "server_restarts": float(run.tool_figures.restarts),
        "sampler_restarts": float(run.sampler.restarts),
        "step_s": step_s,
        "save_s": run.save_s,
        "sampler_idle_share": max(0.0, 1.0 - run.sampler.occupancy.take() / step_s),
        "learner_idle_share": max(0.0, 1.0 - run.learner_occupancy.take() / step_s),
    }
