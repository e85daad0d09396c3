"""Process groups of several processes: communication, and sharding of the weights by FSDP2 or ZeRO-3.

Every process computes some of the packs of a minibatch. Gradients are reduce-scattered after each pack, so a process
never holds more gradients than those of its shard. FSDP2 is used directly, because Accelerate supports it on GPUs only.
This way the same code also runs, and is tested, on CPUs.
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import PartialState
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # pyright: ignore[reportUnknownVariableType]
from torch.distributed.tensor import DTensor, distribute_tensor

from mcprl.config import ModelConfig, RunConfig
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.learning.models import Reference, save_weights
from mcprl.learning.optimizer import Optimisation
from mcprl.learning.packing import Policy
from mcprl.learning.process_group import ProcessGroup
from mcprl.learning.state import State, own_part
from mcprl.records import Weights

_dist = cast("Any", dist)


def make_team(config: RunConfig, rendezvous: Path) -> ProcessGroup:
    """Create the process group. Its processes find each other through the file `rendezvous`."""
    return Zero3Team(rendezvous) if config.learner.sharding == "zero3" else Fsdp2Team(rendezvous)


class Team(ProcessGroup, ABC):
    """Base class of the two ways to shard the weights."""

    def __init__(self, rendezvous: Path) -> None:
        # A file, because torch's TCP store listens on all interfaces without authentication.
        state: Any = PartialState(
            cpu=not torch.cuda.is_available(),
            init_method=rendezvous.as_uri(),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        super().__init__(state.device)
        self.rank, self.size = state.process_index, state.num_processes
        # Used for small messages about an update, which are on the CPU.
        self._talk = _dist.new_group(backend="gloo")

    def own(self, packs: Sequence[Any]) -> list[Any]:
        return deal(packs, self.rank, self.size)

    def everywhere(self, holds: bool) -> bool:
        flag = torch.tensor(int(holds))
        _dist.all_reduce(flag, op=_dist.ReduceOp.MIN, group=self._talk)
        return bool(flag)

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        _dist.all_gather_object(found, value, group=self._talk)
        return found

    def save(self, policy: Policy, version: int, folder: Path, *, model: ModelConfig) -> Weights:
        """Gather the shards of all processes, one tensor after the other. The first process writes the tensors."""
        whole: dict[int, Tensor] = {}
        state: dict[str, Tensor] = {}
        for name, tensor in trained_state(policy).items():
            if id(tensor) not in whole:  # tied weights are one tensor under two names
                whole[id(tensor)] = self._whole(tensor)
            state[name] = whole[id(tensor)]
        if self.rank == 0:
            return save_weights(policy, version, folder, model=model, state=state)
        is_adapter = isinstance(policy.model, PeftModel)
        return Weights(version=version, adapter=folder) if is_adapter else Weights(version=version, model=folder)

    @abstractmethod
    def _whole(self, tensor: Tensor) -> Tensor:
        """Gather a sharded tensor. The first process returns all of it, on the CPU; others only send their shards."""


def deal(packs: Sequence[Any], rank: int, size: int) -> list[Any]:
    """Return every `size`-th pack, starting at `rank`, padded with None to the same length on every process.

    Without the padding, a process with fewer forward passes would leave the others waiting.

    deal(["a", "b", "c"], rank=1, size=2) == ["b", None]
    """
    rounds = -(-len(packs) // size)
    own = list(packs[rank::size])
    return own + [None] * (rounds - len(own))


def trained_state(policy: Policy) -> Mapping[str, Tensor]:
    """Return the tensors that make up a version of the weights, by name: the trained adapter or the whole model."""
    model = cast("nn.Module", policy.model)
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    if not isinstance(model, PeftModel):
        return state
    return {name: tensor for name, tensor in state.items() if tensor.requires_grad}


class Fsdp2Team(Team):
    """A group whose processes each hold a slice of every tensor. FSDP2 gathers a layer only while it computes."""

    def __init__(self, rendezvous: Path) -> None:
        super().__init__(rendezvous)
        # The whole model need not fit on one GPU, and main memory holds it only once: other processes load no weights.
        self.loading_device = torch.device("cpu" if self.rank == 0 else "meta")

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        self._shard(policy, config.model.path)
        if reference is not None and reference.copy is not None:
            self._shard(reference.copy, config.model.path)
        return policy, Optimisation(policy, config)

    def backward(self, loss: Tensor) -> None:
        # FSDP2 takes the mean over processes; a minibatch's loss is the sum.
        (loss * self.size).backward()  # pyright: ignore[reportUnknownMemberType]

    def _whole(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        return tensor.cpu() if self.rank == 0 else torch.empty(0)

    def _shard(self, policy: Policy, path: str) -> None:
        shard = cast("Any", fully_shard)
        mesh = init_device_mesh(self.device.type, (self.size,))
        dtype = policy.autocast
        # Layers are gathered in 16 bits. Shards and sums of gradients stay in float32.
        precision = MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, torch.float32)
        whole = {name: tensor.detach() for name, tensor in policy.named_parameters()}
        model: Any = policy.model
        base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
        names: set[str] = set(base._no_split_modules or ())
        layers = [module for module in base.modules() if type(module).__name__ in names]
        if not layers:
            raise BadValueError(
                f"{path} cannot be sharded: it does not declare its layer classes", fix="set learner.processes to 1"
            )
        for layer in layers:
            shard(layer, mesh=mesh, mp_policy=precision)
        shard(policy, mesh=mesh, mp_policy=precision)
        # By default the outermost module stays gathered from the forward to the backward pass. Without a backward pass
        # it would keep its old weights after the next optimizer step.
        cast("Any", policy).set_reshard_after_forward(True)
        self._send_shards(policy, whole)

    @torch.no_grad()
    def _send_shards(self, policy: Policy, whole: dict[str, Tensor]) -> None:
        """Send each process its shards of the first process's weights, and all of its buffers.

        `whole` are the weights before they were sharded, which only the first process has loaded.
        """
        if self.rank > 0:
            policy.to_empty(device=self.device)
        for name, parameter in policy.named_parameters():
            tensor = whole.pop(name)
            tensor = tensor.to(self.device) if self.rank == 0 else torch.empty_like(tensor, device=self.device)
            shard = cast("Any", parameter)
            own_part(parameter).copy_(distribute_tensor(tensor, shard.device_mesh, shard.placements).to_local())
        for buffer in policy.buffers():  # such as the frequencies of rotary embeddings, which are in no file
            _dist.broadcast(buffer, src=0)


def zero3_settings(config: RunConfig) -> dict[str, Any]:
    """Return the configuration of the DeepSpeed engine."""
    return {
        "train_micro_batch_size_per_gpu": 1,  # used for counting only
        # The number of packs differs between minibatches, so the learner decides when to step.
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.learner.max_grad_norm or 0.0,  # 0 means no clipping
        "zero_optimization": {
            "stage": 3,
            # Shard small tensors too: an unsharded one would not be restored when an update is undone.
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,
    }


class _ZeroOptimisation(Optimisation):
    """AdamW inside DeepSpeed's engine.

    `named` are the flat, numbered shards that it updates. The policy computes with copies of them.
    """

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        super().__init__(policy, config)
        self._engine: Any = None

    def enter(self, engine: Any) -> None:
        self._engine = engine
        shares: list[Tensor] = engine.optimizer.fp32_partitioned_groups_flat
        self.named = {f"share-{number}": share for number, share in enumerate(shares)}

    @torch.no_grad()
    def become(self, state: State) -> None:
        super().become(state)
        used: list[Tensor] = self._engine.optimizer.fp16_partitioned_groups_flat  # float32 as well, despite the name
        for own, share in zip(used, self.parameters, strict=True):
            own.copy_(share)

    def forget_gradients(self) -> None:
        self._engine.optimizer.zero_grad()
        # Weights left gathered by an unfinished pass may be older than their shards.
        self._engine.empty_partition_cache()

    def gradients_are_finite(self) -> Tensor:
        # The engine checks them and skips the step if they are not finite.
        return torch.tensor(True, device=self.parameters[0].device)

    def step(self) -> float:
        self._engine.step()
        if not self._engine.was_step_applied():
            return float("nan")
        self.schedule.step()
        return float(self._engine.get_global_grad_norm())


class Zero3Team(Team):
    """A group whose processes each hold a slice of every tensor. DeepSpeed gathers a module only while it computes."""

    def __init__(self, rendezvous: Path) -> None:
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingExtraError(
                "learner.sharding is zero3, which needs DeepSpeed",
                fix="install mcprl[deepspeed], or set learner.sharding to fsdp2",
            )
        super().__init__(rendezvous)
        self._engine: Any = None

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        import deepspeed

        # On a CPU, DeepSpeed would compile its own all-reduce on first use, under a lock file. If that process is
        # killed, the lock file remains and the next process waits forever. gloo does the same job.
        cast("Any", deepspeed).ops.__compatible_ops__["deepspeed_shm_comm"] = False
        optimisation = _ZeroOptimisation(policy, config)
        self._engine, *_ = cast("Any", deepspeed).initialize(
            model=policy, optimizer=optimisation.optimiser, config=zero3_settings(config), dist_init_required=False
        )
        optimisation.enter(self._engine)
        if reference is not None:
            reference.policy = self._engine
        return self._engine, optimisation

    def backward(self, loss: Tensor) -> None:
        # ZeRO-3 takes the mean over processes; a minibatch's loss is the sum.
        self._engine.backward(loss * self.size)

    def _whole(self, tensor: Tensor) -> Tensor:
        import deepspeed

        if not hasattr(tensor, "ds_id"):
            return tensor.detach().cpu()
        with cast("Any", deepspeed).zero.GatheredParameters([tensor]):
            return tensor.detach().to("cpu", copy=True) if self.rank == 0 else torch.empty(0)
