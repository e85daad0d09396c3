"""A stand-in for the vLLM server, for all of the sampler that needs no vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig, VllmConfig
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler

MODEL = ModelConfig(path="some/model", dtype="float32", context_tokens=512)
SAMPLING = SamplingConfig(
    request_deadline_s=20.0, vllm=VllmConfig(max_sequences=3, memory_fraction=0.4, cpu_cache_gib=2, start_deadline_s=20)
)
LORA, FULL = LearnerConfig(lora_rank=4), LearnerConfig(tuning="full")
REQUEST = SampleRequest(
    prompt_ids=(1, 2, 3), max_tokens=4, temperature=0.7, stop=("</x>",), stop_token_ids=(9,), seed=5
)
ANSWER = {
    "choices": [
        {
            "token_ids": [7, 8],
            "finish_reason": "stop",
            "stop_reason": "</x>",
            "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -0.25}]},
        }
    ],
    "usage": {"prompt_tokens": 3},
}


def altered(**fields: object) -> dict:
    answer = json.loads(json.dumps(ANSWER))
    answer["choices"][0] |= fields
    return answer


def make_sampler(folder: Path, sampling: SamplingConfig = SAMPLING, learner: LearnerConfig = LORA) -> VllmSampler:
    return VllmSampler(MODEL, sampling, learner, log=folder / "vllm.log")


@asynccontextmanager
async def answering(folder: Path, answer: Callable[[str, dict], bytes | None], learner: LearnerConfig = LORA):
    """A sampler whose server is ours: `answer` gives the response to a request, or None to hang up."""
    seen: list[tuple[str, dict]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length")
        )
        seen.append((head.split()[1], json.loads(await reader.readexactly(length))))
        response = answer(*seen[-1])
        if response is not None:
            writer.write(response)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sampler = make_sampler(folder, learner=learner)
    async with server, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:
        sampler._client = client
        yield sampler, seen


def response(status: str, body: str, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return (head + body).encode()
