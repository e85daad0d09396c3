"""The loop: collect groups, make a batch, learn from it, publish the new weights, save, until the steps are done."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping

import psutil

from mcprl.episodes import episode_metrics, succeeded
from mcprl.learning.algorithms import make_batch, next_coefficient
from mcprl.records import Batch, LostEpisode, Trajectory, Update
from mcprl.runs.checkpoints import RunState, deal_ids, write_state
from mcprl.runs.folder import StepRecord
from mcprl.runs.summary import Summary
from mcprl.tasks import Deal
from mcprl.tools.stats import write_stats
from mcprl.training.pipeline import CollectedStep, Pipeline, collect_step
from mcprl.training.run import Run
from mcprl.training.shutdown import RunStopped

__all__ = ["resource_metrics", "train"]


async def save_run(run: Run, open_deals: Mapping[int, Deal]) -> None:
    """Save the run as it stands between two steps. Where that fails, the checkpoints of before are as they were."""
    started = time.monotonic()
    with run.timeline.span(run.step - 1, "save"):
        await _write(run, open_deals)
    run.save_s = time.monotonic() - started


async def _write(run: Run, open_deals: Mapping[int, Deal]) -> None:
    state = RunState(
        step=run.step,
        settings=run.conditions.settings,
        model=run.conditions.model,
        weights_version=run.weights.version,
        kl_coefficient=run.kl_coefficient,
        order=run.order.state(),
        health=run.health.state(),
        open_deals=deal_ids(open_deals),
    )
    partial = run.checkpoints.begin(run.step)
    await run.learner.save_state(partial)
    write_state(partial, state)
    await asyncio.to_thread(run.checkpoints.commit, run.step)
    run.saved_step = run.step
    # What the checkpoint covers is not needed a second time.
    run.journal.forget_before(run.step)
    kept = run.config.training.keep_checkpoints
    await asyncio.to_thread(run.checkpoints.retain, kept, also=run.health.steps_to_return_to)


_KL_HORIZON = 10  # updates over which the KL coefficient moves by at most about a fifth
_GIB = 2**30
_GPU_QUERY = ("--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")
_GPU_DEADLINE_S = 5.0


async def resource_metrics() -> Mapping[str, float]:
    """Memory of this process and of all that it started, what the machine has left, and the GPUs taken together.

    {"memory_trainer_gib": 2.1, "memory_children_gib": 3.4, "memory_free_gib": 12.8, "cpu_load": 1.9}
    """
    own = psutil.Process()
    children = [_rss(child) for child in own.children(recursive=True)]
    return {
        "memory_trainer_gib": own.memory_info().rss / _GIB,
        "memory_children_gib": sum(children) / _GIB,
        "memory_free_gib": psutil.virtual_memory().available / _GIB,
        "cpu_load": psutil.getloadavg()[0],
        **await _gpu_metrics(),
    }


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return 0


async def _gpu_metrics() -> dict[str, float]:
    """By NVIDIA's own program, which comes with the driver; without it, nothing is known of GPUs.

    `gpu_silent` is 1 where the program is there and does not tell.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    process = await asyncio.create_subprocess_exec(
        program, *_GPU_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_GPU_DEADLINE_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"gpu_silent": 1.0}
    rows = _rows(said.decode()) if process.returncode == 0 else None
    if not rows:
        return {"gpu_silent": 1.0}
    used, total, busy = (sum(column) for column in zip(*rows, strict=True))
    return {
        "gpu_memory_gib": used / 1024,
        "gpu_memory_total_gib": total / 1024,
        "gpu_busy_share": busy / len(rows) / 100,
    }


def _rows(said: str) -> list[list[float]] | None:
    """A row a GPU; None where one does not tell, as small boards and virtual ones do."""
    try:
        return [[float(cell) for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    except ValueError:
        return None


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
        ahead=training.max_staleness,
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
    stand_ins = run.order.stand_ins(step) if run.config.algorithm.refill_rounds else ()
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
    bound = run.weights.version - run.config.training.max_staleness
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
            run.kl_coefficient, update.metrics["kl_reference"], target=kl.target, horizon=_KL_HORIZON
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
