"""The learner's state: named tensors and JSON facts that together determine the next update.

The optimizer, the reference and the learner each save and restore their part, both to undo an update and to resume a
run. Each process holds its shard of the state and writes two files:

    learner-0-of-2.safetensors    policy/… (what is trained), adamw/step/…, adamw/exp_avg/…, adamw/exp_avg_sq/…,
                                  reference/…, rng/cpu, rng/cuda
    learner-0-of-2.json           the facts, and the settings that the state was saved under
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor
from torch.distributed.tensor import DTensor

from mcprl.config import RunConfig
from mcprl.errors import OtherStateError

_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The tensors of this process's shard, by name, and facts as JSON values.

    State(tensors={"policy/model.lm_head.weight": tensor([…]), "adamw/step/model.lm_head.weight": tensor(3.0)},
          facts={"optimiser_steps": 3, …})
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def __or__(self, other: State) -> State:
        return State(tensors=self.tensors | other.tensors, facts=self.facts | other.facts)

    def copied(self) -> State:
        """Return a copy on the CPU that does not share tensors with this state."""
        return State(tensors={name: t.to("cpu", copy=True) for name, t in self.tensors.items()}, facts=self.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a saved state was sharded, and the settings that determine the shapes of its tensors.

    Origin(processes=2, sharding="fsdp2", settings={"learner.tuning": "lora", …})
    """

    processes: int
    sharding: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, config: RunConfig, processes: int) -> Origin:
        learner = config.learner
        return cls(
            processes=processes,
            sharding=learner.sharding,
            settings={
                "model.path": config.model.path,
                "model.dtype": config.model.dtype,
                "learner.tuning": learner.tuning,
                "learner.lora_rank": learner.lora_rank,
                "algorithm.advantages": config.algorithm.advantages,
                "algorithm.kl.reference": config.algorithm.kl.reference,
            },
        )

    @property
    def described(self) -> str:
        return "one process" if self.processes == 1 else f"{self.processes} processes with {self.sharding}"

    @property
    def is_by_rows(self) -> bool:
        """Return whether each process has consecutive rows of every tensor. Any number of processes can load them."""
        return self.processes == 1 or self.sharding == "fsdp2"

    def file(self, folder: Path, rank: int, suffix: str) -> Path:
        return folder / f"learner-{rank}-of-{self.processes}{suffix}"


def write_state(state: State, origin: Origin, folder: Path, rank: int) -> None:
    """Write the shard of one process into an existing folder. On a CPU, no tensor is copied."""
    save_file(state.tensors, origin.file(folder, rank, ".safetensors"))
    saved = asdict(origin) | {"facts": state.facts}
    origin.file(folder, rank, ".json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


def read_state(origin: Origin, folder: Path, rank: int) -> tuple[State, Origin]:
    """Read what `write_state` wrote. Return the state and the `Origin` that it was saved with; `origin` is the current
    one.

    FSDP2 may have saved it with another number of processes. Raises OtherStateError if it was sharded in another way.
    """
    file = next(iter(sorted(folder.glob("learner-0-of-*.json"))), None)
    if file is None:
        raise OtherStateError(f"{folder} contains no learner state", fix="resume from another checkpoint")
    content = json.loads(file.read_text(encoding="utf-8"))
    facts = content.pop("facts")
    saved = Origin(**content)
    if saved.described != origin.described:
        if saved.is_by_rows and origin.is_by_rows:
            return State(tensors=_resharded(saved, folder, rank, origin.processes), facts=facts), saved
        raise OtherStateError(
            f"the state in {folder} was saved by {saved.described}, but is being loaded by {origin.described}",
            fix=f"resume with learner.processes={saved.processes} and learner.sharding={saved.sharding}",
        )
    if rank > 0:
        facts = json.loads(origin.file(folder, rank, ".json").read_text(encoding="utf-8"))["facts"]
    return State(tensors=load_file(origin.file(folder, rank, ".safetensors")), facts=facts), saved


def _resharded(saved: Origin, folder: Path, rank: int, processes: int) -> dict[str, Tensor]:
    """Return the shards of process `rank`. Like FSDP2, this splits the rows of a tensor as `torch.chunk` does."""
    tensors: dict[str, Tensor] = {}
    with ExitStack() as opened:
        paths = [saved.file(folder, number, ".safetensors") for number in range(saved.processes)]
        files: list[Any] = [opened.enter_context(safe_open(path, "pt")) for path in paths]  # pyright: ignore
        for name in files[0].keys():  # noqa: SIM118 - not a mapping
            parts: list[Tensor] = [file.get_tensor(name) for file in files]
            if name.startswith("rng/") or not parts[0].ndim:  # the same in all processes
                tensors[name] = parts[0]
                continue
            rows = -(-sum(map(len, parts)) // processes)
            tensors[name] = torch.cat(parts)[rank * rows : (rank + 1) * rows].clone()
    return tensors


def require_fit(state: State, expected: Mapping[str, Tensor], saved: Origin, origin: Origin) -> None:
    """Raise OtherStateError if a tensor is missing, unknown or has the wrong shape.

    AdamW's moments may be missing: they do not exist before the first update.
    """
    needed = [name for name in expected if not name.startswith("adamw/")]
    wrong = next((f"is missing {name}" for name in needed if name not in state.tensors), None)
    for name, tensor in state.tensors.items():
        if wrong is not None:
            break
        if name not in expected:
            wrong = f"contains {name}, which the learner does not have"
        elif _form(tensor) != _form(expected[name]):
            wrong = f"contains {name} as {_form(tensor)}, but the learner has {_form(expected[name])}"
    if wrong is not None:
        raise OtherStateError(
            f"the saved state of the learner {wrong}{_changes(saved, origin)}",
            fix="resume with the settings that the run started with, or start a new run",
        )


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of a safetensors file of these tensors, including its header."""
    header: dict[str, Any] = {}
    size = 0
    for name, tensor in tensors.items():
        dtype = _DTYPE_NAMES.get(tensor.dtype, "F32")
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [size, size + tensor.nbytes]}
        size += tensor.nbytes
    return size + len(json.dumps(header, separators=(",", ":")))


def random_state(device: torch.device) -> State:
    """Return the state of torch's global random generators. mcprl does not use them, but a library might."""
    tensors = {"rng/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["rng/cuda"] = torch.cuda.get_rng_state(device)
    return State(tensors=tensors, facts={})


def restore_random_state(state: State, device: torch.device) -> None:
    torch.set_rng_state(state.tensors["rng/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state.tensors["rng/cuda"], device)


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, detached: the shard of a sharded tensor, or the whole tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _changes(saved: Origin, origin: Origin) -> str:
    changed = [
        f"{name} was {value}, now {origin.settings.get(name)}"
        for name, value in saved.settings.items()
        if value != origin.settings.get(name)
    ]
    return f" ({'; '.join(changed)})" if changed else ""
