"""AdamW with warm-up and a learning-rate schedule. Its state can be saved and restored."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mcprl.config import RunConfig
from mcprl.learning.packing import Policy
from mcprl.learning.state import State, own_part


def learning_rate_share(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """Return the factor of the learning rate at `step`. It rises over `warmup` steps, then follows `schedule`.

    linear    falls linearly to 0 at `total`
    cosine    falls like (1 + cos) / 2 from 0 to π
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


# On these devices one kernel updates all weights, and AdamW keeps its `step` there.
_FUSED_DEVICES = ("cuda",)
# The entries of AdamW's state per parameter, in the order in which AdamW creates them.
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Optimisation:
    """The optimizer of a policy and its learning-rate schedule.

    `named` maps names to the trained parameters, in the order of the optimizer's groups. With several processes, these
    are the shards of this process.
    """

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        learner, algorithm = config.learner, config.algorithm
        own = set[int]() if policy.value_head is None else {id(p) for p in policy.value_head.parameters()}
        trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
        rest = {name: p for name, p in trained.items() if id(p) not in own}
        critic = {name: p for name, p in trained.items() if id(p) in own}
        groups: list[dict[str, Any]] = [{"params": list(rest.values()), "lr": learner.learning_rate}]
        if critic:
            groups.append({"params": list(critic.values()), "lr": algorithm.critic.learning_rate})
        self.named: dict[str, Tensor] = {**rest, **critic}
        is_fused = all(p.device.type in _FUSED_DEVICES for p in trained.values())
        self.optimiser = AdamW(groups, weight_decay=0.0, fused=is_fused or None)
        total = config.training.steps * algorithm.epochs * algorithm.minibatches

        self._rate_factor = 1.0

        def share(step: int) -> float:
            of_schedule = learning_rate_share(step, schedule=learner.schedule, warmup=learner.warmup_steps, total=total)
            return self._rate_factor * of_schedule

        self.schedule = LambdaLR(self.optimiser, share)
        self._max_norm = learner.max_grad_norm

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.named.values())

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimiser.param_groups[0]["lr"])

    def forget_gradients(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def gradients_are_finite(self) -> Tensor:
        norms = torch._foreach_norm([own_part(p.grad) for p in self.parameters if p.grad is not None])  # pyright: ignore
        norm_P = torch.stack(list(norms)) if norms else torch.zeros(1, device=self.parameters[0].device)
        return norm_P.isfinite().all()

    def step(self) -> float:
        """Make one step with clipped gradients, unless their norm is not finite. Returns the norm before clipping."""
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if isinstance(norm, DTensor):  # each process has only the norm of its shard
            norm = norm.full_tensor()
        if norm.isfinite():
            if self._max_norm is not None:
                clip_grads_with_norm_(self.parameters, self._max_norm, norm)
            self.optimiser.step()  # pyright: ignore[reportUnknownMemberType]
            self.schedule.step()
        return float(norm)

    def make_undo(self) -> Callable[[], None]:
        """Return a function that undoes all later steps. The function holds a copy of the state on the CPU."""
        return partial(self.become, self.state().copied())

    def halve_rate(self) -> None:
        """Halve the learning rate of all further steps, on top of the schedule."""
        self._rate_factor /= 2
        self._set_rates()

    def state(self) -> State:
        """Return the state. Its tensors are the ones in use, not copies."""
        tensors = {f"policy/{name}": own_part(parameter) for name, parameter in self.named.items()}
        held: dict[Tensor, dict[str, Tensor]] = self.optimiser.state
        for name, parameter in self.named.items():
            moments = held.get(parameter, {})
            tensors |= {f"adamw/{kind}/{name}": own_part(moment) for kind, moment in moments.items()}
        facts = {
            "optimiser_steps": self.schedule.last_epoch,
            "base_rates": list(self.schedule.base_lrs),
            "rate_factor": self._rate_factor,
        }
        return State(tensors=tensors, facts=facts)

    def expected(self) -> dict[str, Tensor]:
        """Return the tensors that the state has after the first update, on the meta device."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.named.items():
            form = own_part(parameter).to("meta")
            tensors |= {f"policy/{name}": form, f"adamw/step/{name}": torch.empty((), device="meta")}
            tensors |= {f"adamw/{kind}/{name}": form for kind in _MOMENTS[1:]}
        return tensors

    @torch.no_grad()
    def become(self, state: State) -> None:
        """Replace the current state with `state`, and drop all gradients."""
        held: dict[Tensor, dict[str, Tensor]] = self.optimiser.state
        for name, parameter in self.named.items():
            own_part(parameter).copy_(state.tensors[f"policy/{name}"])
            present = held.pop(parameter, {})
            moments = {kind: state.tensors.get(f"adamw/{kind}/{name}") for kind in _MOMENTS}
            put = {k: _moment(k, present.get(k), parameter, m) for k, m in moments.items() if m is not None}
            if put:
                held[parameter] = put
        # The rates come from the current settings, which may differ from those before a resume.
        self.schedule.last_epoch = int(state.facts["optimiser_steps"])
        is_same_rate = state.facts["base_rates"] == list(self.schedule.base_lrs)
        self._rate_factor = float(state.facts["rate_factor"]) if is_same_rate else 1.0
        self._set_rates()
        self.forget_gradients()

    def _set_rates(self) -> None:
        for group, base, share in zip(
            self.optimiser.param_groups, self.schedule.base_lrs, self.schedule.lr_lambdas, strict=True
        ):
            group["lr"] = base * share(self.schedule.last_epoch)


def _moment(kind: str, present: Tensor | None, parameter: Tensor, before: Tensor) -> Tensor:
    """Copy `before` into the tensor `present`, or into a new tensor if that is None. Return the tensor."""
    if present is None and kind == "step":
        return before.to(parameter.device if parameter.device.type in _FUSED_DEVICES else "cpu", copy=True)
    moment = torch.zeros_like(parameter) if present is None else present
    own_part(moment).copy_(before)
    return moment
