"""A real vLLM with more long prompts at once than it reads in one go, each with a seed of its own."""

from __future__ import annotations

import asyncio

import pytest

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig, VllmConfig
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler

NUM_PROMPTS = 12
PROMPT_TOKENS = 900


@pytest.mark.slow
async def test_prompts_that_do_not_fit_into_one_batch_are_all_answered(tiny_qwen3, tmp_path):
    model = ModelConfig(path=str(tiny_qwen3), dtype="float32", context_tokens=1024)
    # Merging, since there is no adapter here and layers that could take one are slow.
    sampling = SamplingConfig(vllm=VllmConfig(max_sequences=NUM_PROMPTS, merge_adapters=True))
    requests = [
        SampleRequest(
            prompt_ids=tuple(100 + (13 * number + place) % 20000 for place in range(PROMPT_TOKENS)),
            max_tokens=2,
            temperature=1.0,
            stop=(),
            stop_token_ids=(),
            seed=number,
        )
        for number in range(NUM_PROMPTS)
    ]
    async with VllmSampler(model, sampling, LearnerConfig(), log=tmp_path / "vllm.log") as sampler:
        completions = await asyncio.gather(*(sampler.sample(request) for request in requests))
    assert [len(completion.token_ids) for completion in completions] == [2] * NUM_PROMPTS
