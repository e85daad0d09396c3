"""A real vLLM takes requests to sleep and to wake up. On a CPU it answers and frees nothing, so no bytes are seen."""

from __future__ import annotations

import pytest

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(900)]

REQUEST = SampleRequest(
    prompt_ids=tuple(range(100, 160)), max_tokens=8, temperature=0.0, stop=(), stop_token_ids=(), seed=0
)


@pytest.mark.parametrize("tuning", ["lora", "full"])  # level 1 and level 2
async def test_it_samples_the_same_after_it_slept_and_was_not_restarted(tuning, small_qwen3, tmp_path):
    async with VllmSampler(
        ModelConfig(path=str(small_qwen3), renderer="qwen3", dtype="float32", context_tokens=512),
        SamplingConfig(),
        LearnerConfig(tuning=tuning),
        max_sequences=4,
        turn_deadline_s=600.0,
        log=tmp_path / "vllm.log",
        placement=Placement(in_turns=True),
    ) as sampler:
        before = await sampler.sample(REQUEST)
        for _ in range(2):
            await sampler.sleep()
            await sampler.wake(Weights(version=0))
            assert (await sampler.sample(REQUEST)).token_ids == before.token_ids
        assert sampler.restarts == 0
