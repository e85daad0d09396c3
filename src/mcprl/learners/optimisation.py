"""AdamW with warm-up and a schedule, and the way back from an update that met something that is no number."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mcprl.config import RunConfig
from mcprl.learners.policy import Policy

__all__ = ["Optimisation", "Undo", "learning_rate_share"]


def learning_rate_share(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """The share of the learning rate in force at an optimiser step: rising over `warmup`, then as the schedule says.

    linear    falls in a straight line, to 0 at `total`
    cosine    falls as (1 + cos) / 2 does from 0 to π
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    match schedule:
        case "linear":
            return 1.0 - done
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case _:
            return 1.0


class Optimisation:
    """The optimiser of a policy and the schedule of its learning rate."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        learner, algorithm = config.learner, config.algorithm
        critic = [] if policy.value_head is None else list(policy.value_head.parameters())
        own = {id(parameter) for parameter in critic}
        rest = [p for p in policy.parameters() if p.requires_grad and id(p) not in own]
        groups: list[dict[str, Any]] = [{"params": rest, "lr": learner.learning_rate}]
        if critic:
            groups.append({"params": critic, "lr": algorithm.critic.learning_rate})
        self.parameters: list[Tensor] = [*rest, *critic]
        self.optimiser = AdamW(groups, weight_decay=learner.weight_decay)
        total = config.training.steps * algorithm.epochs * algorithm.minibatches

        def share(step: int) -> float:
            return learning_rate_share(step, schedule=learner.schedule, warmup=learner.warmup_steps, total=total)

        self.schedule = LambdaLR(self.optimiser, share)
        self._max_norm = learner.max_grad_norm

    @property
    def learning_rate(self) -> float:
        """The one in force for the next step."""
        return float(self.optimiser.param_groups[0]["lr"])

    def forget_gradients(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def gradients_are_finite(self) -> bool:
        """Whether every number of every gradient is one."""
        norms = torch._foreach_norm([_own_part(p.grad) for p in self.parameters if p.grad is not None])  # pyright: ignore
        return bool(torch.stack(list(norms)).isfinite().all()) if norms else True

    def step(self) -> float:
        """One step, with gradients scaled down to the largest norm allowed; the norm that they had.

        Where that is no number, no step is made.
        """
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if isinstance(norm, DTensor):  # a share of it; all processes together know the whole
            norm = norm.full_tensor()
        if norm.isfinite():
            clip_grads_with_norm_(self.parameters, self._max_norm, norm)
            self.optimiser.step()  # pyright: ignore[reportUnknownMemberType]
            self.schedule.step()
        return float(norm)


class Undo:
    """All that an update changes, as it was before: kept in the CPU's memory, so that a GPU has room for the update."""

    def __init__(self, optimisation: Optimisation) -> None:
        self._optimisation = optimisation
        self._parameters = [_kept(parameter) for parameter in optimisation.parameters]
        state: dict[Tensor, dict[str, Any]] = optimisation.optimiser.state
        self._state = {p: {name: (value, _kept(value)) for name, value in own.items()} for p, own in state.items()}
        self._schedule = optimisation.schedule.state_dict()
        self._rates = [group["lr"] for group in optimisation.optimiser.param_groups]

    @torch.no_grad()
    def apply(self) -> None:
        """Make the update not to have been."""
        optimiser = self._optimisation.optimiser
        for parameter, before in zip(self._optimisation.parameters, self._parameters, strict=True):
            _own_part(parameter).copy_(before)
        optimiser.state.clear()
        for parameter, own in self._state.items():
            optimiser.state[parameter] = {name: _restored(value, before) for name, (value, before) in own.items()}
        self._optimisation.schedule.load_state_dict(self._schedule)
        for group, rate in zip(optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self._optimisation.forget_gradients()


def _own_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor, without its gradient: all of it, or its share."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _kept(value: Any) -> Any:
    return _own_part(value).to("cpu", copy=True) if isinstance(value, Tensor) else value


def _restored(value: Any, before: Any) -> Any:
    if not isinstance(value, Tensor):
        return before
    _own_part(value).copy_(before)
    return value
