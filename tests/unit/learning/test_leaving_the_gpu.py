"""What a learner moves when the sampler gets the GPU, and that it learns on afterwards as if nothing had happened."""

from __future__ import annotations

import os

import pytest
import torch
from made_trajectories import ragged_batch, weights_hash

from mcprl.config import RunConfig
from mcprl.learning import distributed
from mcprl.learning.distributed import DistributedLearner


async def test_leaving_and_returning_changes_no_weight_and_no_later_update(tiny_model, make_learner):
    batch, stays, leaves = ragged_batch(tiny_model), make_learner(), make_learner()
    for learner in (stays, leaves):
        await learner.update(batch)
    await leaves.leave_gpu()
    await leaves.return_to_gpu()
    for learner in (stays, leaves):
        await learner.update(batch)
    assert weights_hash(leaves.policy) == weights_hash(stays.policy)


async def test_weights_moments_and_gradients_all_leave(tiny_model, make_learner):
    learner = make_learner()
    await learner.update(ragged_batch(tiny_model))
    parameters = list(learner.policy.parameters())
    learner._move(torch.device("meta"))  # stands for another device
    moments = learner.optimisation.optimiser.state.values()
    held = [*learner.policy.parameters(), *(m for kinds in moments for name, m in kinds.items() if name != "step")]
    assert {tensor.device.type for tensor in held} == {"meta"}
    assert all(parameter.grad is None for parameter in parameters)


async def test_after_an_update_torch_keeps_no_free_memory_that_a_restarted_vllm_would_need(
    tiny_model, make_learner, monkeypatch
):
    learner, steps_at_release = make_learner(), list[int]()
    steps = learner.optimisation.optimiser.state
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: steps_at_release.append(len(steps)))
    await learner.update(ragged_batch(tiny_model))
    assert len(steps_at_release) == 1
    assert steps_at_release[0] > 0  # the optimizer had made its step


async def test_each_process_of_a_learner_sees_the_gpus_of_the_learner_only(monkeypatch, tmp_path):
    class Seen(Exception):
        pass

    async def start(_argv: object, *, env: dict[str, str], log: object) -> None:
        raise Seen(env["CUDA_VISIBLE_DEVICES"], env["LOCAL_RANK"])

    monkeypatch.setattr(distributed.ChildProcess, "start", start)
    config = RunConfig.model_validate(
        {
            "name": "x",
            "model": {"path": "./m"},
            "tasks": {"train": "t"},
            "servers": {"file": "s"},
            "learner": {"processes": 2},
        }
    )
    for given, wanted in ((None, "2,3"), ("7,6,5,4", "5,4")):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if given is not None:
            monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", given)
        with pytest.raises(Seen) as seen:
            async with DistributedLearner(config, folder=tmp_path / "weights", grammars=None, gpus=(2, 3)):
                pass
        assert seen.value.args == (wanted, "0")
