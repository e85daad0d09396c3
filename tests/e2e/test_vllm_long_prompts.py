"""A real vLLM with more long prompts at once than it reads in one go, each with a seed of its own."""

from __future__ import annotations

import asyncio

import pytest
from shared_vllm import ANSWER_S, MAX_SEQUENCES

from mcprl.config import LearnerConfig
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler

NUM_PROMPTS = 6
PROMPT_TOKENS = 900  # vLLM reads 4,096 tokens in one go


@pytest.mark.process
async def test_prompts_that_do_not_fit_into_one_batch_are_all_answered(shared_vllm, tmp_path):
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
    with shared_vllm.lent():
        log = tmp_path / "vllm.log"
        async with VllmSampler(
            shared_vllm.model,
            shared_vllm.sampling,
            LearnerConfig(),
            max_sequences=MAX_SEQUENCES,
            turn_deadline_s=ANSWER_S,
            log=log,
        ) as sampler:
            completions = await asyncio.gather(*(sampler.sample(request) for request in requests))
    assert [len(completion.token_ids) for completion in completions] == [2] * NUM_PROMPTS
