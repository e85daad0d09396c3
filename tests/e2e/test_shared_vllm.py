"""What one test does to the shared vLLM, the next one does not see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from shared_vllm import ANSWER_S, MAX_SEQUENCES
from transformers import AutoModelForCausalLM

from mcprl.config import LearnerConfig
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

REQUEST = SampleRequest(
    prompt_ids=tuple(range(1000, 1100)), max_tokens=16, temperature=0.8, stop=(), stop_token_ids=(), seed=3
)
HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture
def adapter(smollm2, tmp_path) -> Path:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(smollm2, dtype="float32"),
        LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"]),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


async def test_a_server_that_is_given_back_is_as_it_was_started(shared_vllm, adapter, tmp_path):
    def sampler() -> VllmSampler:
        return VllmSampler(
            shared_vllm.model,
            shared_vllm.sampling,
            LearnerConfig(),
            max_sequences=MAX_SEQUENCES,
            turn_deadline_s=ANSWER_S,
            log=tmp_path / "vllm.log",
        )

    with shared_vllm.lent():
        async with sampler() as first:
            expected = await first.sample(REQUEST)
            await first.publish(Weights(version=5, adapter=adapter))
            changed = await first.sample(REQUEST)
            # Given back amid a turn, and paused.
            in_flight = asyncio.create_task(first.sample(REQUEST))
            await first.replicas[0]._servers.running.post("/pause?mode=keep", {})
            in_flight.cancel()
        hits = shared_vllm.counted(HITS)
        async with sampler() as second:
            again = await second.sample(REQUEST)
            missed = shared_vllm.counted(HITS)
            repeated = await second.sample(REQUEST)
    assert set(changed.weights_versions) == {5}
    assert changed.logprobs != expected.logprobs
    assert again == expected
    assert missed == hits  # nothing of the prompt was cached,
    assert shared_vllm.counted(HITS) > missed  # as it is when it is asked for a second time
    assert repeated.token_ids == expected.token_ids
    assert shared_vllm.starts == 1
