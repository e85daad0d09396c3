"""What this machine has, asked without importing torch, and what a recipe's model takes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mcprl.config import RunConfig
from mcprl.planning.model_size import ModelSize

__all__ = ["MemoryNeeds", "checkpoint_bytes", "gpu_memories", "hub_folder", "in_words", "memory_needs", "needed_gpus"]

_MIB = 1024**2
_GIB = 1024**3
_NVIDIA_SMI_S = 10.0
# AdamW: the weight itself, its gradient and two moments, all in 32 bits.
_TRAINED_BYTES = 16
_CHECKPOINT_BYTES = 12
# A base of 4 bits, with its scales.
_FOUR_BIT_BYTES = 0.6


@lru_cache(maxsize=1)
def gpu_memories() -> tuple[int, ...]:
    """The bytes of each NVIDIA GPU, by the driver's own tool; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    asked = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()  # a driver that does not answer has no GPU to offer
    return tuple(int(line) * _MIB for line in answer.stdout.split() if line.isdigit())


def needed_gpus(config: RunConfig) -> int:
    """The GPUs that a recipe counts on in this machine; a server of the Tinker API has its own."""
    if config.engine == "skyrl":
        return 0
    return config.learner.processes if config.learner.processes > 1 else int(config.learner.tuning == "lora_4bit")


def hub_folder(name: str) -> Path | None:
    """The newest snapshot of a hub's model in the local cache; None where there is none."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob("*") if (path / "config.json").exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What the parts of a run hold, in bytes; activations come on top.

    MemoryNeeds(sampler=1_612_000_000, learner=616_000_000)
    """

    sampler: float
    learner: float

    @property
    def total(self) -> float:
        return self.sampler + self.learner


def memory_needs(config: RunConfig, size: ModelSize, *, on_gpu: bool) -> MemoryNeeds | None:
    """Weights, gradients, moments and the sampler's cache; None where the model's size is not known.

    On a GPU vLLM takes a share of it whatever the model, so its part is 0 here.
    """
    if size.parameters is None:
        return None
    parameters, learner = size.parameters, config.learner
    width = 4 if config.model.dtype == "float32" else 2
    if learner.tuning == "full":
        held = parameters * _TRAINED_BYTES + (parameters * 4 if config.algorithm.kl.needs_reference else 0)
    else:
        adapter = (size.rank_parameters or 0) * learner.lora_rank * _TRAINED_BYTES
        held = parameters * (_FOUR_BIT_BYTES if learner.tuning == "lora_4bit" else width) + adapter
    if config.engine == "skyrl" or on_gpu:
        return MemoryNeeds(sampler=0.0, learner=held)
    cache = config.sampling.vllm.cpu_cache_gib * _GIB if config.sampling.engine == "vllm" else 0
    return MemoryNeeds(sampler=parameters * width + cache, learner=held)


def checkpoint_bytes(config: RunConfig, size: ModelSize) -> float | None:
    """About what a checkpoint takes: the trained weights and their moments; None where their number is not known."""
    if config.learner.tuning == "full":
        return None if size.parameters is None else size.parameters * _CHECKPOINT_BYTES
    return None if size.rank_parameters is None else size.rank_parameters * config.learner.lora_rank * _CHECKPOINT_BYTES


def in_words(size: float) -> str:
    """Bytes for a person.

    >>> in_words(1_612_000_000)
    '1.6 GB'
    """
    for unit in ("bytes", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
