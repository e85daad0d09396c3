"""Saving a run: a checkpoint of everything that the next step depends on, and what it makes needless."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from mcprl.tasks import Deal
from mcprl.training.run import Run
from mcprl.training.state import RunState, deal_ids, write_state

__all__ = ["save_run"]


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
