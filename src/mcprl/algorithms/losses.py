"""Losses on flat selections of tokens (axis N: the learnable tokens of a minibatch).

Each gives a number for each token and takes no mean: the caller weighs tokens (`sequence_weights`) and adds them up.
`old_logprob_N` is what ratios are against: ρ = exp(logp − logp_old).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cispo_loss", "clipped_policy_loss", "gspo_loss", "imitation_loss", "value_loss"]


def clipped_policy_loss(
    logprob_N: Tensor,
    old_logprob_N: Tensor,
    advantage_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's loss: −min(ρ·A, clip(ρ, 1 − clip_low, 1 + clip_high)·A).

    With `dual_clip` c, the loss of a token with A < 0 is at most c·|A|: one that the policy has come to like far too
    much pulls no harder, however large its ratio is.
    """
    ratio_N = torch.exp(logprob_N - old_logprob_N)
    loss_N = _pessimistic_loss(ratio_N, advantage_N, clip_low, clip_high)
    if dual_clip is None:
        return loss_N
    return torch.where(advantage_N < 0, torch.minimum(loss_N, -dual_clip * advantage_N), loss_N)


def gspo_loss(
    logprob_N: Tensor,
    old_logprob_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GSPO's loss, in its form for tokens: PPO's, with the ratio of the whole sequence in place of the token's.

    s = exp(mean of log ρ over the tokens of the sequence),   s_t = sg(s) · π_t / sg(π_t)   (sg: no gradient)

    The value of s_t is s, its gradient that of the token. Where all tokens of a sequence have the same advantage, the
    mean over them has value and gradient of GSPO's own objective, −min(s·A, clip(s)·A).

    `sequence_N` (int64) says which sequence a token belongs to, in any order. All tokens of a sequence must be there.
    """
    sequence_count = int(sequence_N.max()) + 1 if len(sequence_N) else 0
    log_ratio_N = (logprob_N - old_logprob_N).detach()
    sum_S = log_ratio_N.new_zeros(sequence_count).index_add(0, sequence_N, log_ratio_N)
    mean_S = sum_S / sequence_N.bincount(minlength=sequence_count).clamp(min=1)
    # The difference of the logprobs is 0 and comes first, so that it takes no digits off the mean.
    ratio_N = torch.exp((logprob_N - logprob_N.detach()) + mean_S[sequence_N])
    return _pessimistic_loss(ratio_N, advantage_N, clip_low, clip_high)


def cispo_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """CISPO's loss: −sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·logp, where sg lets no gradient through.

    The clip bounds the weight of a token's gradient and never makes it 0: every token keeps teaching.
    """
    weight_N = torch.exp(logprob_N.detach() - old_logprob_N).clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight_N * advantage_N * logprob_N


def value_loss(value_N: Tensor, old_value_N: Tensor, return_N: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error of a value head: ½·max((v − R)², (v_clipped − R)²).

    v_clipped = v_old + clip(v − v_old, −clip, clip). The larger of the two is taken, so a value that has moved further
    than `clip` towards its return gets no gradient. Without `clip`: ½·(v − R)².
    """
    error_N = (value_N - return_N).square()
    if clip is not None:
        clipped_N = old_value_N + (value_N - old_value_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (clipped_N - return_N).square())
    return 0.5 * error_N


def imitation_loss(logprob_N: Tensor) -> Tensor:
    """Behaviour cloning: −logp of the tokens of a demonstration."""
    return -logprob_N


def _pessimistic_loss(ratio_N: Tensor, advantage_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
