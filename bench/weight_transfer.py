"""Whole weights from the learner to vLLM: by files, and by vLLM's weight-transfer API without files.

A learner with all weights of SmolLM2-135M (float32), changed by noise, publishes them to a vLLM on the CPU both ways:
with tied embeddings, as the model has them, and with a head of its own. With --ci, the tied model only. On a machine
with GPUs, NCCL sends them from the second GPU to the first, or CUDA IPC on the only one.

differ              weights whose checksum in vLLM differs between the two ways, plus turns whose tokens or logprobs do
unchanged           checks in which new weights could not be told from the old ones; 0, or the above shows nothing
files_s, direct_s   median seconds until the new weights are sampled from: writing and publishing, and sending
write_s             the part of files_s that the learner takes to write the folder

    python bench/weight_transfer.py [--ci]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcprl.config import RunConfig
from mcprl.learning import TorchLearner
from mcprl.placement import Placement, gpu_memories
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler
from servers.harness import run_bench, say

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "models" / "smollm2-135m"
NOISE = 0.02
ROUNDS = 3
REQUESTS = [
    SampleRequest(
        prompt_ids=tuple(range(100 + seed, 200 + seed)),
        max_tokens=16,
        temperature=0.8,
        stop=(),
        stop_token_ids=(),
        seed=seed,
    )
    for seed in range(4)
]
BARS = {"differ": ("<=", 0), "unchanged": ("<=", 0)}


def untied(folder: Path) -> Path:
    """The model with a head that is another tensor than the embeddings."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    head = model.get_input_embeddings().weight.detach().clone()
    model.lm_head.weight = torch.nn.Parameter(head * 1.01)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL).save_pretrained(folder)
    return folder


def make_config(model: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "transfer",
            "model": {"path": str(model), "renderer": "chatml", "dtype": "float32", "context_tokens": 512},
            "tasks": {"train": "tasks.jsonl"},
            "servers": {"file": "servers.json"},
            "learner": {"tuning": "full"},
            "sampling": {"vllm": {"weight_transfer": "direct"}},
        }
    )


def change(learner: TorchLearner, version: int) -> None:
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in learner.policy.model.parameters():
            parameter.add_(
                NOISE * parameter.std() * torch.randn(parameter.shape, generator=generator).to(parameter.device)
            )
    learner._weights = Weights(version=version)  # pyright: ignore[reportPrivateUsage]


async def observe(sampler: VllmSampler) -> tuple[dict[str, str], list[Any]]:
    """The checksums of all weights in vLLM, and what it samples from them."""
    transport = httpx2.AsyncHTTPTransport(uds=str(sampler.replicas[0].socket))
    async with httpx2.AsyncClient(base_url="http://vllm", transport=transport, timeout=600) as client:
        response = await client.post("/weight_checker", json={"action": "checksum"})
        checksums: dict[str, str] = response.raise_for_status().json()["checksums"]
    turns = [await sampler.sample(request) for request in REQUESTS]
    return checksums, [(turn.token_ids, turn.logprobs) for turn in turns]


def differing(one: tuple[dict[str, str], list[Any]], two: tuple[dict[str, str], list[Any]]) -> int:
    names = one[0].keys() | two[0].keys()
    turns = sum(mine != other for mine, other in zip(one[1], two[1], strict=True))
    return turns + sum(one[0].get(name) != two[0].get(name) for name in names)


async def compare(model: Path, folder: Path, figures: dict[str, Any]) -> None:
    config = make_config(model)
    gpus = len(gpu_memories())
    learner = TorchLearner(config, folder=folder / "weights", grammars=None, gpu=min(1, gpus - 1) if gpus else None)
    sampler = VllmSampler(
        config.model,
        config.sampling,
        config.learner,
        max_sequences=4,
        turn_deadline_s=600.0,
        log=folder / "vllm.log",
        placement=Placement(replicas=((0,) if gpus else (),), in_turns=gpus == 1, vllm_share=0.4),
    )
    sampler.receive_from(learner.send)
    async with sampler:
        before = await observe(sampler)
        for version in range(1, ROUNDS + 1):
            change(learner, version)
            began = time.monotonic()
            written = learner._save_weights(version)  # pyright: ignore[reportPrivateUsage]
            figures["write"].append(time.monotonic() - began)
            await sampler.publish(written)
            figures["files"].append(time.monotonic() - began)
            by_files = await observe(sampler)
            figures["unchanged"] += differing(before, by_files) == 0
            await sampler.publish(Weights(version=0))  # so that nothing of the files is left
            figures["unchanged"] += differing(await observe(sampler), by_files) == 0
            began = time.monotonic()
            await sampler.publish(Weights(version=version))
            figures["direct"].append(time.monotonic() - began)
            figures["differ"] += differing(by_files, await observe(sampler))
            say(f"{model.name}: {len(by_files[0])} weights and {len(REQUESTS)} turns, {figures['differ']} differ")
        figures["restarts"] += sampler.restarts


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {"differ": 0, "unchanged": 0, "restarts": 0, "write": [], "files": [], "direct": []}
    models = [MODEL] if ci else [MODEL, untied(folder / "untied")]
    for model in models:
        here = folder / f"of-{model.name}"
        await asyncio.to_thread(here.mkdir)
        await compare(model, here, figures)
    return {f"{k}_s" if isinstance(v, list) else k: _median(v) for k, v in figures.items()}


def _median(value: Any) -> Any:
    return round(statistics.median(value), 2) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS))
