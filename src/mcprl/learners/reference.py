"""The reference policy: what the policy may not move away from too far, without a second copy of the base model.

With an adapter, the untouched model is the base with its adapter off, and any other reference is a second adapter
beside the live one. Only where all weights are trained is there a frozen copy.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from mcprl.config import KlConfig, LearnerConfig
from mcprl.learners.policy import Policy
from mcprl.learners.state import State, own_part

__all__ = ["Reference"]

_LIVE, _KEPT = "default", "reference"


class Reference:
    """Follows the policy as `kl.reference` says: never, by a moving average, or by a copy every so many updates."""

    def __init__(self, policy: Policy, kl: KlConfig, learner: LearnerConfig) -> None:
        self.policy = policy
        self._kl = kl
        self._updates = 0
        self.copy: Policy | None = None
        self._home = next(policy.parameters()).device
        self._rest = torch.device("cpu") if learner.offload_reference else self._home
        if not isinstance(policy.model, PeftModel):
            self.copy = copy.deepcopy(policy).requires_grad_(False).eval().to(self._rest)
        elif kl.reference != "base":
            model: Any = policy.model
            model.add_adapter(_KEPT, model.peft_config[_LIVE])
            model.set_adapter(_LIVE)
            self.become_policy()

    @contextmanager
    def in_place(self) -> Generator[Policy]:
        """The reference, as a policy to score with."""
        if self.copy is not None:
            if self._rest == self._home:
                yield self.copy
                return
            try:
                yield self.copy.to(self._home)
            finally:
                self.copy.to(self._rest)
            return
        model: Any = self.policy.model
        if self._kl.reference == "base":
            with model.disable_adapter():
                yield self.policy
            return
        model.set_adapter(_KEPT, inference_mode=True)
        try:
            yield self.policy
        finally:
            model.set_adapter(_LIVE)

    def follow(self) -> dict[str, float]:
        """After an update: move as configured, and say what was done and whether it took."""
        self._updates += 1
        if self._kl.reference == "ema":
            self._average()
        elif self._kl.reference == "sync" and self._updates % self._kl.sync_every == 0:
            return {"reference_synced": 1.0, "reference_tensors_differing": float(self.become_policy())}
        return {"reference_synced": 0.0}

    @torch.no_grad()
    def become_policy(self) -> int:
        """Take over every tensor of the policy; the number that still differ afterwards, which must be 0."""
        pairs = self._pairs()
        for live, kept in pairs.values():
            kept.copy_(live)
        return sum(not bool((live.to(kept.device) == kept).all()) for live, kept in pairs.values())

    def state(self) -> State:
        """What it has become: the tensors in use themselves. Of the untouched model there is nothing to keep."""
        if self._kl.reference == "base":
            return State(tensors={}, facts={})
        tensors = {f"reference/{name}": own_part(kept) for name, (_, kept) in self._pairs().items()}
        return State(tensors=tensors, facts={"reference_updates": self._updates})

    @torch.no_grad()
    def become(self, state: State) -> None:
        """Take a state over."""
        if self._kl.reference == "base":
            return
        self._updates = state.facts["reference_updates"]
        for name, own in self.state().tensors.items():
            own.copy_(state.tensors[name])

    @torch.no_grad()
    def _average(self) -> None:
        for live, kept in self._pairs().values():
            kept.lerp_(live.to(kept.device), 1.0 - self._kl.ema_decay)

    def _pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Each trained tensor of the policy with the reference's own. Quantised weights and their buffers are frozen
        and shared: they are not among them."""
        live = dict(self.policy.model.named_parameters())
        if self.copy is not None:
            kept = dict(self.copy.model.named_parameters())
            return {name: (tensor, kept[name]) for name, tensor in live.items()}
        mark = f".{_LIVE}."
        return {name: (tensor, live[name.replace(mark, f".{_KEPT}.")]) for name, tensor in live.items() if mark in name}
