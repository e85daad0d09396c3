"""DeepSpeed's ZeRO-3 as a crew: its engine holds the shares of weights, gradients and moments, and makes the steps.

Weights and moments are kept in 32 bits, as in one process; where model.dtype is bfloat16 the policy computes in it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mcprl.config import RunConfig
from mcprl.errors import MissingExtraError
from mcprl.learners.optimisation import Optimisation
from mcprl.learners.policy import Policy
from mcprl.learners.reference import Reference
from mcprl.learners.state import State
from mcprl.learners.team import Team

__all__ = ["Zero3Team", "zero3_settings"]


def zero3_settings(config: RunConfig) -> dict[str, Any]:
    """DeepSpeed's own configuration of an engine."""
    return {
        "train_micro_batch_size_per_gpu": 1,  # it counts with it only; a pack is as large as the learner makes it
        # A minibatch has as many packs as it needs, and ends where the learner makes its step.
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.learner.max_grad_norm or 0.0,  # DeepSpeed's word for never
        "zero_optimization": {
            "stage": 3,
            # Small tensors too: one that stayed whole would not follow when an update is undone.
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,
    }


class _ZeroOptimisation(Optimisation):
    """AdamW inside DeepSpeed's engine. `named` are the shares that it moves, flat and numbered: the engine cuts them as
    it likes. What the policy computes with follows them."""

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
        used: list[Tensor] = self._engine.optimizer.fp16_partitioned_groups_flat  # in 32 bits too, in spite of the name
        for own, share in zip(used, self.parameters, strict=True):
            own.copy_(share)

    def forget_gradients(self) -> None:
        self._engine.optimizer.zero_grad()
        # Weights that are still whole from a pass that was not finished may be older than their shares.
        self._engine.empty_partition_cache()

    def gradients_are_finite(self) -> bool:
        return True  # the engine looks at them in its step, and makes none where they are not

    def step(self) -> float:
        self._engine.step()
        if not self._engine.was_step_applied():
            return float("nan")
        self.schedule.step()
        return float(self._engine.get_global_grad_norm())


class Zero3Team(Team):
    """Each process holds a slice of every tensor; DeepSpeed gathers a module's weights while it computes."""

    def __init__(self, rendezvous: Path) -> None:
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingExtraError(
                "learner.sharding is zero3, which needs DeepSpeed", fix="install mcprl[deepspeed], or use fsdp2"
            )
        super().__init__(rendezvous)
        self.loading_device = self.device
        self._engine: Any = None

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        import deepspeed

        # On a CPU, DeepSpeed would compile an operation of its own for all-reduce when it is first used, under a lock
        # that outlives a process that is killed meanwhile: the next one would wait for ever. gloo does as well.
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
