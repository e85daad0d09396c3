"""The objective: combines the formulas of this package as configured.

    loss = Σ over learnable tokens of weight · (gate · importance · policy loss + β · divergence − entropy bonus
           + 0.5 · value loss), where gate is 0 if the ratio is outside algorithm.ratio_gate, else 1

Token weights are computed over the whole minibatch, so the loss does not depend on the size of packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig
from mcprl.errors import UserCodeError
from mcprl.functions import UserCode, load_function
from mcprl.learning.algorithms.losses import (
    cispo_loss,
    clipped_policy_loss,
    divergence,
    gspo_loss,
    importance_weights,
    inside_gate,
    value_loss,
)

_VALUE_WEIGHT = 0.5  # weight of the value loss
_VALUE_CLIP = 0.2  # maximum change of a value in one update
MAX_IMPORTANCE = 2.0
"""Upper limit on a token's importance weight, used only with algorithm.old_logprobs=recomputed."""


class Scores(NamedTuple):
    """For each scored token: its logprob, the entropy of the distribution at its position, and the value before it.

    N runs over the scored tokens. `value_N` is None without a value head.
    """

    logprob_N: Tensor
    entropy_N: Tensor
    value_N: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """The inputs of the objective, one number per scored token. A column that is not needed is None.

    Columns are float32, except mask and version. In a pack, all are on the model's device, except the mask (CPU).

    Example: two sampled tokens of a good episode, with algorithm.masks=text. The second was fixed by the grammar.

        sampled_logprob_N    [-0.3, -1.2]
        old_logprob_N        [-0.3, -1.2]      the denominator of the ratio
        advantage_N          [0.71, 0.0]
        carries_loss_N       [True, False]
        weights_version_N    [3, 4]            the version that sampled the token
        reference_logprob_N, old_value_N, return_N     None
    """

    sampled_logprob_N: Tensor
    old_logprob_N: Tensor
    advantage_N: Tensor
    carries_loss_N: Tensor
    weights_version_N: Tensor
    reference_logprob_N: Tensor | None = None
    old_value_N: Tensor | None = None
    return_N: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[TokenColumns], device: torch.device) -> TokenColumns:
        """Concatenate the columns of several examples."""
        found: dict[str, Any] = {}
        for name, column in parts[0].named().items():
            if column is None:
                found[name] = None
                continue
            whole = torch.cat([getattr(part, name) for part in parts])
            found[name] = whole if name == "carries_loss_N" else whole.to(device, non_blocking=True)
        return cls(**found)

    @property
    def learned_N(self) -> Tensor:
        """The indices of the tokens that carry loss. They are found on the CPU, so nothing waits for a GPU."""
        return self.carries_loss_N.nonzero().squeeze(1).to(self.old_logprob_N.device, non_blocking=True)

    def learned(self) -> TokenColumns:
        """Select the columns of the tokens that carry loss."""
        learned_N, carries_N = self.learned_N, self.carries_loss_N
        columns = {name: column for name, column in self.named().items() if column is not None}
        return replace(self, **{name: c[carries_N if c is carries_N else learned_N] for name, c in columns.items()})

    def named(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss of a pack, ready for `backward`, and its parts: detached values per learnable token, for the metrics.

    Outcome(loss=tensor(-0.02, grad_fn=…), parts={"policy_loss": tensor([-0.01, -0.03]), "kl_reference": tensor([…])})
    """

    loss: Tensor
    parts: dict[str, Tensor]


def policy_outcome(
    scores: Scores,
    columns: TokenColumns,
    sequence_N: Tensor,
    weight_N: Tensor,
    algorithm: AlgorithmConfig,
    kl_coefficient: float,
) -> Outcome:
    """Compute the objective over the scored tokens that carry loss."""
    learned_N = columns.learned_N
    logprob_N, weight_N, columns = scores.logprob_N[learned_N], weight_N[learned_N], columns.learned()
    loss_N, parts = _policy_loss(logprob_N, columns, sequence_N[learned_N], algorithm)
    parts = {"policy_loss": loss_N.detach() * weight_N} | parts
    if columns.reference_logprob_N is not None:
        kl_N = divergence(logprob_N, columns.reference_logprob_N, algorithm.kl.estimator)
        parts["kl_reference"] = kl_N.detach()
        if not algorithm.kl.in_reward:
            loss_N = loss_N + kl_coefficient * kl_N
            parts["kl_loss"] = kl_coefficient * kl_N.detach() * weight_N
    if algorithm.entropy > 0:
        loss_N = loss_N - algorithm.entropy * scores.entropy_N[learned_N]
    if scores.value_N is not None and columns.old_value_N is not None and columns.return_N is not None:
        value_N = scores.value_N[learned_N]
        own_N = value_loss(value_N, columns.old_value_N, columns.return_N, clip=_VALUE_CLIP)
        loss_N = loss_N + _VALUE_WEIGHT * own_N
        parts |= {"value_loss": own_N.detach() * weight_N, "value": value_N.detach()}
    return Outcome(loss=(loss_N * weight_N).sum(), parts=parts)


def _policy_loss(
    logprob_N: Tensor, columns: TokenColumns, sequence_N: Tensor, algorithm: AlgorithmConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return gate · importance · policy loss per token, and the parts `importance` and `gated` (1 where gate is 0)."""
    old_N, advantage_N = columns.old_logprob_N, columns.advantage_N
    low, high = algorithm.clip_low, algorithm.clip_high
    kept_N, inside_N = logprob_N, None
    if algorithm.ratio_gate is not None:
        inside_N = inside_gate(torch.exp(logprob_N.detach() - old_N), algorithm.ratio_gate)
        # An overflowing ratio would make the gradient NaN even if its loss is dropped.
        kept_N = torch.where(inside_N, logprob_N, old_N)
    match algorithm.loss:
        case "ppo":
            loss_N = clipped_policy_loss(kept_N, old_N, advantage_N, clip_low=low, clip_high=high)
        case "gspo":
            loss_N = gspo_loss(logprob_N, old_N, advantage_N, sequence_N, clip_low=low, clip_high=high)
        case "cispo":
            loss_N = cispo_loss(logprob_N, old_N, advantage_N, clip_low=low, clip_high=high)
        case _:
            loss_N = _own_loss(kept_N, old_N, advantage_N, sequence_N, algorithm)
    parts: dict[str, Tensor] = {}
    if algorithm.old_logprobs == "recomputed":
        parts["importance"] = importance_weights(old_N, columns.sampled_logprob_N, cap=MAX_IMPORTANCE)
        loss_N = loss_N * parts["importance"]
    if inside_N is not None:
        loss_N = torch.where(inside_N, loss_N, 0.0)
        parts["gated"] = (~inside_N).float()
    return loss_N, parts


def _own_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, sequence_N: Tensor, algorithm: AlgorithmConfig
) -> Tensor:
    """Call the user's loss, which has the signature of `gspo_loss`."""
    own = load_function(algorithm.loss, "algorithm.loss")
    with UserCode(algorithm.loss):
        loss_N = own(
            logprob_N,
            old_logprob_N,
            advantage_N,
            sequence_N,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
        )
    if not isinstance(loss_N, Tensor) or loss_N.shape != logprob_N.shape:
        found = f"a tensor of shape {tuple(loss_N.shape)}" if isinstance(loss_N, Tensor) else type(loss_N).__name__
        raise UserCodeError(
            f"{algorithm.loss} returned {found} for {len(logprob_N)} tokens", fix="return one number per token"
        )
    return loss_N


def require_sound_loss(algorithm: AlgorithmConfig) -> None:
    """Raise if the user's loss fails on two short sequences.

    Its values and gradients must be finite. Those of one sequence must not depend on the other sequence. Otherwise
    the loss of a batch would depend on how it is packed.
    """
    old_N = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0])
    advantage_N = torch.tensor([1.0, 1.0, 1.0, -0.5, -0.5])
    sequence_N = torch.tensor([0, 0, 0, 1, 1])

    def run(chosen_N: Tensor) -> tuple[Tensor, Tensor]:
        logprob_N = (old_N + torch.tensor([0.0, 0.3, -0.3, 0.0, 0.4]))[chosen_N].requires_grad_()
        loss_N = _own_loss(logprob_N, old_N[chosen_N], advantage_N[chosen_N], sequence_N[chosen_N], algorithm)
        if not loss_N.requires_grad:
            raise UserCodeError(
                f"the result of {algorithm.loss} has no gradient", fix=("compute the result from logprob_N")
            )
        (gradient_N,) = torch.autograd.grad(loss_N.sum(), logprob_N)
        if not (loss_N.isfinite().all() and gradient_N.isfinite().all()):
            raise UserCodeError(
                f"a value or a gradient of {algorithm.loss} is not finite for ratios between 0.7 and 1.5",
                fix="make the value and the gradient finite",
            )
        return loss_N.detach(), gradient_N

    together = run(torch.ones(5, dtype=torch.bool))
    apart = [run(sequence_N == sequence) for sequence in (0, 1)]
    for whole_N, parts in zip(together, zip(*apart, strict=True), strict=True):
        if not torch.allclose(whole_N, torch.cat(parts), atol=1e-6):
            raise UserCodeError(
                f"with {algorithm.loss}, a token's loss depends on other sequences in the batch, so the losses of "
                "separate packs cannot be added up",
                fix="combine only tokens of the same sequence; sequence_N gives the sequence of each token",
            )
