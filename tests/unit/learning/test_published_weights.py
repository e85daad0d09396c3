"""What an update publishes: its dtype, its size as the plan counts it, and the scores of the policy that wrote it."""
# R11

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_trajectories import TINY_QWEN3, make_config, naive_logprobs, ragged_batch
from transformers import AutoConfig, AutoModelForCausalLM

from mcprl.checks.plan import model_size
from mcprl.config import RunConfig
from mcprl.learning import TorchLearner
from mcprl.learning.packing import plain_examples
from mcprl.records import Batch

# The largest |Δlogprob| of a token between learner and sampler.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05}


def published(tuning: str, dtype: str, batch: Batch, folder: Path) -> tuple[RunConfig, TorchLearner, Path]:
    config = make_config(tuning=tuning, lora_rank=64, learning_rate=1e-3, max_parity_error=1e6)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    learner = TorchLearner(config, folder=folder, grammars=None)
    weights = learner._update(batch).weights
    place = weights.model or weights.adapter
    assert place is not None
    return config, learner, place


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_whole_weights_are_published_in_the_dtype_that_the_sampler_computes_in(dtype, tiny_model, tmp_path):
    batch = ragged_batch(tiny_model)
    _, learner, folder = published("full", dtype, batch, tmp_path)
    assert AutoConfig.from_pretrained(folder).dtype == getattr(torch, dtype)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    trained = dict(learner.policy.model.named_parameters())
    assert trained.keys() == dict(loaded.named_parameters()).keys()
    for name, parameter in loaded.named_parameters():
        assert trained[name].dtype == torch.float32
        assert torch.equal(parameter, trained[name].to(getattr(torch, dtype))), name
    found, _ = learner._survey(
        learner.policy, plain_examples(batch.trajectories, [t.sampled for t in batch.trajectories])
    )
    for trajectory, logprobs in zip(batch.trajectories, found, strict=True):
        sampler = naive_logprobs(loaded, trajectory)
        differences = [abs(a - b) for a, b, own in zip(logprobs, sampler, trajectory.sampled, strict=True) if own]
        assert max(differences) < TOLERANCE[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_publication_has_as_many_parameters_as_the_plan_counts(tuning, dtype, tiny_model, tmp_path):
    config, _, folder = published(tuning, dtype, ragged_batch(tiny_model), tmp_path)
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    trained = model_size(str(TINY_QWEN3)).trained_parameters(config)
    assert trained is not None
    width = 2 if (tuning, dtype) == ("full", "bfloat16") else 4
    assert written == pytest.approx(trained * width, rel=0.05)
