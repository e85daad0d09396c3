"""The objective of one pack: the formulas of `mcprl.learning.algorithms`, put together as the configuration says.

    loss = Σ over learnable tokens of weight · (gate · importance · policy loss + β · divergence − entropy bonus
                                                + critic coefficient · value loss)

A token's weight is what aggregation gives it in its whole minibatch, so packs of any size add up to the same loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig
from mcprl.learning.algorithms import (
    cispo_loss,
    clipped_policy_loss,
    divergence,
    gspo_loss,
    importance_weights,
    inside_gate,
    value_loss,
)
from mcprl.learning.models import Scores
from mcprl.learning.packing import Pack, TokenColumns

__all__ = ["Outcome", "policy_outcome"]

_VALUE_WEIGHT = 0.5  # of the value loss
_VALUE_CLIP = 0.2  # how far a value may move in one update


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss of a pack, ready for `backward`, and its parts as each learnable token's weighted share, detached.

    Outcome(loss=tensor(-0.02, grad_fn=…), parts={"policy_loss": tensor([-0.01, -0.03]), "kl_reference": tensor([…])})
    """

    loss: Tensor
    parts: dict[str, Tensor]


def policy_outcome(
    scores: Scores, pack: Pack, weight_N: Tensor, algorithm: AlgorithmConfig, kl_coefficient: float
) -> Outcome:
    """The objective over those scored tokens that carry loss. `weight_N` has an entry for each scored token."""
    carries_N = pack.columns.carries_loss_N
    logprob_N, weight_N = scores.logprob_N[carries_N], weight_N[carries_N]
    columns = pack.columns.chosen(carries_N)
    loss_N, parts = _policy_loss(logprob_N, columns, pack.sequence_N[carries_N], algorithm)
    parts = {"policy_loss": loss_N.detach() * weight_N} | parts
    if columns.reference_logprob_N is not None:
        kl_N = divergence(logprob_N, columns.reference_logprob_N, algorithm.kl.estimator)
        parts["kl_reference"] = kl_N.detach()
        if not algorithm.kl.in_reward:
            loss_N = loss_N + kl_coefficient * kl_N
            parts["kl_loss"] = kl_coefficient * kl_N.detach() * weight_N
    if algorithm.entropy > 0:
        loss_N = loss_N - algorithm.entropy * scores.entropy_N[carries_N]
    if scores.value_N is not None and columns.old_value_N is not None and columns.return_N is not None:
        value_N = scores.value_N[carries_N]
        own_N = value_loss(value_N, columns.old_value_N, columns.return_N, clip=_VALUE_CLIP)
        loss_N = loss_N + _VALUE_WEIGHT * own_N
        parts |= {"value_loss": own_N.detach() * weight_N, "value": value_N.detach()}
    return Outcome(loss=(loss_N * weight_N).sum(), parts=parts)


def _policy_loss(
    logprob_N: Tensor, columns: TokenColumns, sequence_N: Tensor, algorithm: AlgorithmConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy's loss for each token, gated and weighted; and which tokens were gated, and the weights."""
    old_N, advantage_N = columns.old_logprob_N, columns.advantage_N
    low, high = algorithm.clip_low, algorithm.clip_high
    kept_N, inside_N = logprob_N, None
    if algorithm.ratio_gate is not None:
        inside_N = inside_gate(torch.exp(logprob_N.detach() - old_N), algorithm.ratio_gate)
        # A ratio too large for a number would spoil the gradient even where its loss is dropped.
        kept_N = torch.where(inside_N, logprob_N, old_N)
    match algorithm.loss:
        case "ppo":
            loss_N = clipped_policy_loss(
                kept_N, old_N, advantage_N, clip_low=low, clip_high=high, dual_clip=algorithm.dual_clip
            )
        case "gspo":
            loss_N = gspo_loss(logprob_N, old_N, advantage_N, sequence_N, clip_low=low, clip_high=high)
        case "cispo":
            loss_N = cispo_loss(logprob_N, old_N, advantage_N, clip_low=low, clip_high=high)
    parts: dict[str, Tensor] = {}
    if algorithm.old_logprobs == "recomputed":
        importance_N = importance_weights(old_N, columns.sampled_logprob_N, cap=algorithm.max_importance)
        loss_N = loss_N * importance_N
        parts["importance"] = importance_N
    if inside_N is not None:
        loss_N = torch.where(inside_N, loss_N, 0.0)
        parts["gated"] = (~inside_N).float()
    return loss_N, parts
