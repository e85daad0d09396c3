"""The loop: collect groups, make a batch, learn from it, publish the new weights, until the steps are done."""

from __future__ import annotations

import time

from mcprl.algorithms import make_batch, next_coefficient
from mcprl.episodes import episode_metrics, succeeded
from mcprl.records import Batch, LostEpisode, Trajectory, Update
from mcprl.tools.stats import write_stats
from mcprl.training.collecting import CollectedStep, collect_step
from mcprl.training.health import Health
from mcprl.training.run import Run
from mcprl.training.summary import Summary

__all__ = ["train"]


async def train(run: Run) -> Summary:
    """Train to the end of the schedule and leave the weights and a summary in the run's folder."""
    summary = Summary()
    health = Health(run.config)
    for step in range(run.config.training.steps):

        def on_finished(outcome: Trajectory | LostEpisode, step: int = step) -> None:
            run.watcher.episode_finished(step, outcome)

        started = time.monotonic()
        collected = await collect_step(run.order, run.collector, step, run.config.algorithm, on_finished)
        metrics = episode_metrics(collected.all_groups, time.monotonic() - started) | collected.metrics
        played = collected.all_groups
        run.order.note({g.task.id: [succeeded(t.reward_parts) for t in g.trajectories] for g in played})
        update = await run.learner.update(await _batch_of(run, step, collected))
        await _publish(run, update)
        metrics |= {
            **update.metrics,
            "weights_version": float(run.weights.version),
            "server_restarts": float(run.toolbox.restarts),
            "step_s": time.monotonic() - started,
        }
        verdicts = health.judge(metrics, update.skipped)
        run.folder.record_step(step, played, metrics, verdicts)
        write_stats(run.folder.path, run.toolbox.stats())
        summary.add(metrics, verdicts)
        run.watcher.step_finished(step, metrics, verdicts)
    run.folder.finish(run.weights, summary.as_dict())
    return summary


async def _batch_of(run: Run, step: int, collected: CollectedStep) -> Batch:
    """The batch of a step, with what the learner says of its groups and what is to be imitated beside them."""
    groups = collected.groups
    algorithm = run.config.algorithm
    demonstrations: tuple[Trajectory, ...] = ()
    weight = algorithm.warm_start.weight_at(step)
    if run.demonstrator is not None and weight > 0:
        # Also of tasks that were left out of the batch: where all attempts failed, a solution is worth most.
        demonstrations = await run.demonstrator.play([group.task for group in collected.all_groups], step)
    return make_batch(
        step,
        groups,
        algorithm,
        await run.learner.read([t for group in groups for t in group.trajectories]),
        kl_coefficient=run.kl_coefficient,
        demonstrations=demonstrations,
        demonstration_weight=weight,
    )


async def _publish(run: Run, update: Update) -> None:
    """Let the sampler have new weights, where there are any, and steer by how far they have moved."""
    if update.weights.version != run.weights.version:
        run.weights = await run.sampler.publish(update.weights)
        run.folder.drop_old_weights(run.weights)
    kl = run.config.algorithm.kl
    if kl.target is not None and "kl_reference" in update.metrics:
        run.kl_coefficient = next_coefficient(
            run.kl_coefficient, update.metrics["kl_reference"], target=kl.target, horizon=kl.horizon
        )
