"""The processes that make an update: this one alone, or (`mcprl.learning.sharding`) several that share the weights.

The learner is written for a process group, which has the few operations in which several processes differ from one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mcprl.config import ModelConfig, RunConfig
from mcprl.learning.models import Reference, save_weights
from mcprl.learning.optimizer import Optimisation
from mcprl.learning.packing import Policy
from mcprl.records import Weights

__all__ = ["ProcessGroup"]


class ProcessGroup:
    """The processes of a learner, seen from one of them; this class is a group of one.

    All processes call the same methods in the same order. The model is put together on `loading_device`, before it is
    sharded, and computed on `device`: without one, the GPU if there is one.
    """

    rank: int = 0
    size: int = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.loading_device = self.device

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        """Give each process its shard of the weights. Returns the policy to use from now on, and its optimizer."""
        return policy, Optimisation(policy, config)

    def own(self, packs: Sequence[Any]) -> list[Any]:
        """The packs that this process computes: equally many on every process, None if it has no more."""
        return list(packs)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a pack. Over all processes they add up."""
        loss.backward()  # pyright: ignore[reportUnknownMemberType]

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds on every process."""
        return holds

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, the same list on all. Tensors in it are on the CPU."""
        return [value]

    def save(self, policy: Policy, version: int, folder: Path, *, model: ModelConfig) -> Weights:
        """Write the weights, once."""
        return save_weights(policy, version, folder, model=model)
