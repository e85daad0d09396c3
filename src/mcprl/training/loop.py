"""The loop: collect groups, learn from them, publish the new weights, until the steps are done."""

from __future__ import annotations

import time

from mcprl.algorithms import make_batch
from mcprl.episodes import episode_metrics, succeeded
from mcprl.records import LostEpisode, Trajectory
from mcprl.tools.stats import write_stats
from mcprl.training.run import Run
from mcprl.training.summary import Summary

__all__ = ["train"]


async def train(run: Run) -> Summary:
    """Train to the end of the schedule and leave the adapter and a summary in the run's folder."""
    summary = Summary()
    for step in range(run.config.training.steps):

        def on_finished(outcome: Trajectory | LostEpisode, step: int = step) -> None:
            run.watcher.episode_finished(step, outcome)

        started = time.monotonic()
        groups = await run.collector.collect(run.order.deal(step), step, on_finished)
        metrics = episode_metrics(groups, time.monotonic() - started)
        run.order.note({g.task.id: [succeeded(t.reward_parts) for t in g.trajectories] for g in groups})
        update = await run.learner.update(make_batch(step, groups, run.config.algorithm.masks))
        run.weights = await run.sampler.publish(update.weights)
        metrics |= {
            **update.metrics,
            "weights_version": float(run.weights.version),
            "server_restarts": float(run.toolbox.restarts),
            "step_s": time.monotonic() - started,
        }
        run.folder.record_step(step, groups, metrics)
        write_stats(run.folder.path, run.toolbox.stats())
        run.folder.drop_old_adapters(run.weights)
        summary.add(metrics)
        run.watcher.step_finished(step, metrics)
    run.folder.finish(run.weights, summary.as_dict())
    return summary
