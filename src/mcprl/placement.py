"""Decides which GPUs sample and which learn, from `placement` in the recipe and the GPUs of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mcprl.config import RunConfig
from mcprl.errors import BadValueError

__all__ = ["Placement", "free_share", "gpu_memories", "place", "visible"]

_MIB = 1024**2
_NVIDIA_SMI_S = 10.0
# Of a GPU's memory, for vLLM: alone; in turns with the learner; in turns with a learner that cannot move its weights
# away; at the same time as the learner.
_ALONE, _IN_TURNS, _WITH_WEIGHTS, _BESIDE = 0.9, 0.85, 0.6, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of each vLLM server that the run starts, and of each learner process; () means none.

    `urls` are servers that are already running; each request to them has `headers`. With `in_turns`, vLLM and the
    learner use the same GPUs, but not at the same time. The default for four GPUs:

    Placement(replicas=((0,), (1,), (2,)), learner=(3,), in_turns=False, vllm_share=0.9)
    """

    replicas: tuple[tuple[int, ...], ...] = ((),)
    tensor_parallel: int = 1
    urls: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    learner: tuple[int, ...] = ()
    in_turns: bool = False
    vllm_share: float = _ALONE

    @property
    def sampling(self) -> tuple[int, ...]:
        """Return the GPUs that sample."""
        return tuple(device for devices in self.replicas for device in devices)

    @property
    def gpus(self) -> int:
        """Return how many GPUs the machine must have."""
        return max((*self.sampling, *self.learner), default=-1) + 1

    def drawn(self) -> str:
        """Describe the placement in one line: "GPUs 0-2: vLLM ×3 | GPU 3: learner"."""
        servers = f"vLLM ×{len(self.replicas)}" if len(self.replicas) > 1 else "vLLM"
        learners = f"learner ×{len(self.learner)}" if len(self.learner) > 1 else "learner"
        parts = [f"{len(self.urls)} vLLM server{'s' * (len(self.urls) > 1)} elsewhere"] if self.urls else []
        both = tuple(sorted({*self.sampling} & {*self.learner}))
        together = f"{servers} and {learners}, {'in turns' if self.in_turns else 'at the same time'}"
        rest = [({*self.sampling} - {*both}, servers), ({*both}, together), ({*self.learner} - {*both}, learners)]
        parts += [f"{_named(sorted(devices))}: {what}" for devices, what in rest if devices]
        return " | ".join(parts) if parts else "everything on the CPU"


def _named(devices: Sequence[int]) -> str:
    first, last = devices[0], devices[-1]
    if first == last:
        return f"GPU {first}"
    is_range = len(devices) == last - first + 1
    return f"GPUs {first}-{last}" if is_range else f"GPUs {','.join(map(str, devices))}"


def place(config: RunConfig, gpus: int) -> Placement:
    """Place the sampler and the torch learner of a recipe on a machine with this number of GPUs.

    The learner gets the last `learner.processes` GPUs, and vLLM servers all others. If there are too few, both use the
    same ones. The result may name more GPUs than there are if the recipe needs them.
    """
    sampler, learner, processes = config.placement.sampler, config.placement.learner, config.learner.processes
    width, every = sampler.tensor_parallel, range(gpus)
    if config.engine == "skyrl" or not gpus:
        count = len(sampler.devices) // width or sampler.replicas or 1
        servers = () if config.engine != "vllm" or sampler.urls else ((),) * count
        return Placement(replicas=servers, tensor_parallel=width, urls=sampler.urls)
    if config.engine != "vllm" or sampler.urls:
        learning = learner.devices or tuple(range(processes))
        return Placement(replicas=(), urls=sampler.urls, learner=learning)
    shared = learner.colocated
    if shared is None and sampler.devices and learner.devices:
        shared = bool({*sampler.devices} & {*learner.devices})
    elif shared is None:
        named = len({*sampler.devices, *learner.devices})
        shared = max(gpus, named) < processes + (len(sampler.devices) or width * (sampler.replicas or 1))
    if shared:
        first = sampler.devices if len(sampler.devices) >= processes else tuple(range(processes))
        learning = learner.devices or first[:processes]
    else:
        rest = tuple(device for device in every if device not in sampler.devices)
        learning = learner.devices or (rest if len(rest) >= processes else tuple(range(gpus, gpus + processes)))
        learning = learning[-processes:]
    free = [device for device in every if shared or device not in learning]
    count = len(sampler.devices) // width or sampler.replicas or max(1, len(free) // width)
    sampling = sampler.devices or (*free, *range(gpus, gpus + count * width))[: count * width]
    meet = bool({*sampling} & {*learning})
    in_turns = meet and not config.training.max_staleness
    stays = config.learner.tuning == "lora_4bit" or (processes > 1 and config.learner.sharding == "zero3")
    shared_by = (_WITH_WEIGHTS if stays else _IN_TURNS) if in_turns else _BESIDE
    return Placement(
        replicas=tuple(tuple(sampling[first : first + width]) for first in range(0, count * width, width)),
        tensor_parallel=width,
        learner=learning,
        in_turns=in_turns,
        vllm_share=config.sampling.vllm.memory_fraction or (shared_by if meet else _ALONE),
    )


def visible(devices: Sequence[int]) -> str:
    """Return CUDA_VISIBLE_DEVICES for a process on these GPUs. The indices refer to our own CUDA_VISIBLE_DEVICES."""
    names = _visible_names()
    if names is not None and max(devices) >= len(names):
        raise BadValueError(
            f"placement uses GPU {max(devices)}, but CUDA_VISIBLE_DEVICES lists only {len(names)}: {','.join(names)}",
            fix="use fewer GPUs in placement and learner.processes, or make more of them visible",
        )
    return ",".join(str(device) if names is None else names[device] for device in devices)


def _visible_names() -> list[str] | None:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def _memories() -> list[tuple[int, int]]:
    """Return the total and the free memory of each GPU that this process may use; empty without a working driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 4 and row[2].isdigit() and row[3].isdigit()]
    names = _visible_names()
    if names is not None:
        rows = [row for name in names for row in rows if row[0] == name or row[1].startswith(name)]
    return [(int(total) * _MIB, int(free) * _MIB) for _, _, total, free in rows]


@lru_cache(maxsize=1)
def gpu_memories() -> tuple[int, ...]:
    """Return the memory in bytes of each NVIDIA GPU that this process may use; empty without a working driver."""
    return tuple(total for total, _ in _memories())


def free_share(devices: Sequence[int]) -> float:
    """Return the smallest share of memory that is free on these GPUs now; 1 if it is not known."""
    found = _memories()
    return min((found[device][1] / found[device][0] for device in devices if device < len(found)), default=1.0)
