"""How much faster vLLM samples where an adapter is added to its weights than where it is computed beside them.

Two servers one after the other, the same model and the same adapter, the same turns. `apart_tokens_per_s` and
`merged_tokens_per_s` are medians of several batches, `ratio` is the second over the first; `publish_s` is what putting
the merged adapter in force took.

    python bench/merged_adapters.py [--model FOLDER] [--batches 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig, VllmConfig
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler
from servers.harness import say

ROOT = Path(__file__).resolve().parent.parent
TURNS, PROMPT_TOKENS, TURN_TOKENS, RANK = 16, 200, 64, 16


def write_adapter(model: str, folder: Path) -> None:
    """An adapter on every linear layer whose weights are not 0: one that was never trained would change nothing."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    adapted = get_peft_model(base, LoraConfig(r=RANK, target_modules="all-linear"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.001)
    adapted.save_pretrained(folder)


async def tokens_per_s(model: str, adapter: Path, log: Path, *, merged: bool, batches: int) -> tuple[float, float]:
    """Tokens a second, the median of the batches, and how long the publication took."""
    sampling = SamplingConfig(vllm=VllmConfig(merge_adapters=merged))
    config = ModelConfig(path=model, dtype="float32", context_tokens=1024)
    rates: list[float] = []
    async with VllmSampler(
        config, sampling, LearnerConfig(lora_rank=RANK), max_sequences=TURNS, turn_deadline_s=600.0, log=log
    ) as sampler:
        started = time.monotonic()
        await sampler.publish(Weights(version=1, adapter=adapter))
        publish_s = time.monotonic() - started
        for batch in range(batches + 1):
            requests = [
                SampleRequest(
                    prompt_ids=tuple(1000 + (place * 37 + turn * 11) % 20000 for place in range(PROMPT_TOKENS)),
                    max_tokens=TURN_TOKENS,
                    temperature=1.0,
                    stop=(),
                    stop_token_ids=(),
                    seed=batch * TURNS + turn,
                )
                for turn in range(TURNS)
            ]
            started = time.monotonic()
            done = await asyncio.gather(*(sampler.sample(request) for request in requests))
            rate = sum(len(turn.token_ids) for turn in done) / (time.monotonic() - started)
            say(f"{'merged' if merged else 'apart'}, batch {batch}: {rate:.1f} tokens/s")
            rates.append(rate)
    return statistics.median(rates[1:]), publish_s  # the first batch reads the prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / ".cache" / "models" / "smollm2-135m"))
    parser.add_argument("--batches", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder, "adapter")
        write_adapter(arguments.model, adapter)
        found: dict[bool, tuple[float, float]] = {}
        for merged in (False, True):
            measuring = tokens_per_s(
                arguments.model, adapter, Path(folder, "vllm.log"), merged=merged, batches=arguments.batches
            )
            found[merged] = asyncio.run(measuring)
    (apart, _), (merged_rate, publish_s) = found[False], found[True]
    figures = {
        "apart_tokens_per_s": round(apart, 1),
        "merged_tokens_per_s": round(merged_rate, 1),
        "ratio": round(merged_rate / apart, 2),
        "publish_s": round(publish_s, 2),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
