"""An untrained model on BFCL: real server, real sampler, the judge's verdicts, and a task that does not fit."""

from __future__ import annotations

import pytest

from mcprl.records import StopReason, turns_by_message

pytest.importorskip("bfcl_eval", reason="needs the wheel: pip install --no-deps bfcl-eval==2026.3.23 mpmath")

from mcprl.evaluation.harness import Request, evaluate, make_request
from mcprl_suites.bfcl.suite import BfclMultiTurn

# The first has a short prompt, about 2,000 tokens; that of the second has more than the context.
PLAYED = ("multi_turn_base_100", "multi_turn_base_157")
CONTEXT_TOKENS = 3072


class TwoTasks(BfclMultiTurn):
    """The suite, but for most of its tasks."""

    def tasks(self):
        return [task for task in super().tasks() if task.id in PLAYED]


class Nobody:
    """Listens to nothing."""

    def stage(self, text): ...
    def episode_finished(self, step, outcome): ...
    def step_finished(self, step, metrics, verdicts): ...


@pytest.mark.full
@pytest.mark.process
async def test_an_untrained_model_is_judged_on_every_task_also_on_one_that_does_not_fit(smollm2, tmp_path):
    settings = (
        "model.renderer=chatml",
        "model.dtype=float32",
        f"model.context_tokens={CONTEXT_TOKENS}",
        "engine=transformers",
        "sampling.max_tokens=12",
        "episodes.max_concurrent=1",
    )
    config = make_request(suite="bfcl-multi-turn", model=str(smollm2), overrides=settings).config
    request = Request(config=config, suite=TwoTasks())
    played = await evaluate(request, Nobody(), logs=tmp_path)
    by_task = {trajectory.task_id: trajectory for trajectory in played.trajectories}
    assert set(by_task) == set(PLAYED)
    figures = played.evaluation.figures
    assert (figures.tasks, figures.success.value) == (2, 0.0)
    assert figures.success.high is not None
    assert figures.failures["context limit"] >= 1
    assert by_task["multi_turn_base_157"].stop is StopReason.CONTEXT_LIMIT
    task = next(task for task in TwoTasks().tasks() if task.id == "multi_turn_base_100")
    trajectory = by_task[task.id]
    if trajectory.stop is StopReason.ANSWERED:
        assert len(turns_by_message(trajectory.turns)) == 1 + len(task.follow_ups)
    assert played.evaluation.lost == {}
