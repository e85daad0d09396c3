"""The processes that compute an update: only this one, or several that shard the weights (`sharding`).

The learner uses a `ProcessGroup` for the few operations that differ between one process and several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from mcprl.config import ModelConfig, RunConfig
from mcprl.learning.models import Reference, save_weights
from mcprl.learning.optimizer import Optimisation
from mcprl.learning.packing import Policy
from mcprl.records import Weights


class ProcessGroup:
    """The processes of a learner, as seen by one of them. This base class is a group of one process.

    All processes call the same methods in the same order. The model is loaded on `loading_device`, then sharded, and
    computes on `device`. The default device is the GPU if there is one.
    """

    rank: int = 0
    size: int = 1

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.loading_device = self.device

    def share(self, policy: Policy, reference: Reference | None, config: RunConfig) -> tuple[Policy, Optimisation]:
        """Give each process its shard of the weights. Return the policy to use from now on, and its optimizer."""
        return policy, Optimisation(policy, config)

    def own(self, packs: Sequence[Any]) -> list[Any]:
        """Return the packs that this process computes: the same number on every process, padded with None."""
        return list(packs)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a pack. Gradients are summed over all processes."""
        loss.backward()  # pyright: ignore[reportUnknownMemberType]

    def everywhere(self, holds: bool) -> bool:
        """Return whether `holds` is true on all processes."""
        return holds

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in order of rank. Tensors in them must be on the CPU."""
        return [value]

    def whole_tensors(self, policy: Policy) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the model, one at a time. With several processes, all must iterate."""
        for name, parameter in policy.model.named_parameters():
            tensor = parameter.detach()
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def save(self, policy: Policy, version: int, folder: Path, *, model: ModelConfig) -> Weights:
        """Write the weights. Only one process writes."""
        return save_weights(policy, version, folder, model=model)
