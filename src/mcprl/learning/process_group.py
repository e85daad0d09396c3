"""Who does the work of an update: this process alone, or several that hold a share of the weights each.

The learner is written for a process group. The group has the few operations in which several processes differ from one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mcprl.config import ModelConfig, RunConfig
from mcprl.learning.models import Policy, Reference, save_weights
from mcprl.learning.optimizer import Optimisation
from mcprl.records import Weights

__all__ = ["ProcessGroup", "SingleProcess"]


class ProcessGroup(Protocol):
    """The processes of a learner, seen from one of them. All of them call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """Which process this is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        ...

    @property
    def loading_device(self) -> torch.device:
        """Where the whole model is put together, before it is shared."""
        ...

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        """Give each process its share of the weights: the policy to compute with from now on, and its optimiser."""
        ...

    def own(self, packs: Sequence[Any]) -> list[Any]:
        """Those packs that this process computes: as many on every process, None where it has none left."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a pack. Over all processes they add up."""
        ...

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds on every process."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The value of each process, the same list on all. Tensors in it are on the CPU."""
        ...

    def save(self, policy: Policy, version: int, folder: Path, *, model: ModelConfig) -> Weights:
        """Write the weights, once."""
        ...


class SingleProcess:
    """One process."""

    rank, size = 0, 1

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` is where it computes: the GPU, where there is one."""
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.loading_device = self.device

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        return policy, Optimisation(policy, config)

    def own(self, packs: Sequence[Any]) -> list[Any]:
        return list(packs)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # pyright: ignore[reportUnknownMemberType]

    def everywhere(self, holds: bool) -> bool:
        return holds

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def save(self, policy: Policy, version: int, folder: Path, *, model: ModelConfig) -> Weights:
        return save_weights(policy, version, folder, model=model)
