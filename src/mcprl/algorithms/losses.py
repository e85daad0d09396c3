"""Losses and divergences on flat selections of tokens (axis N: the learnable tokens of a minibatch)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped_policy_loss", "k3_divergence"]


def clipped_policy_loss(
    logprob_N: Tensor, sampled_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's loss for each token: −min(ρ·A, clip(ρ, 1 − clip_low, 1 + clip_high)·A), ρ = exp(logp − logp_sampled).

    No mean is taken: the caller divides by the number of tokens of the whole minibatch.
    """
    ratio_N = torch.exp(logprob_N - sampled_logprob_N)
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)


def k3_divergence(logprob_N: Tensor, sampled_logprob_N: Tensor) -> Tensor:
    """Estimate of KL(sampled ‖ current) for each token: ρ − 1 − log ρ. Never negative, and 0 where the two agree."""
    log_ratio_N = logprob_N - sampled_logprob_N
    return torch.expm1(log_ratio_N) - log_ratio_N
