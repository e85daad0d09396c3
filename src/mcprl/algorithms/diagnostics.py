"""Figures that tell a healthy update from a broken one."""

from __future__ import annotations

import torch
from torch import Tensor

from mcprl.algorithms.losses import k3_divergence

__all__ = ["parity_metrics", "ratio_metrics"]


# Ratios outside of these, before any update, are counted one by one: sampler and learner disagree on that token.
_NEAR_ONE = (0.9, 1.1)


def parity_metrics(logprob_N: Tensor, sampled_logprob_N: Tensor) -> dict[str, float]:
    """How far learner and sampler disagree about tokens that no update has touched yet.

    On-policy the mean ratio is 1 and everything else is 0. `parity_kl` is k3's estimate of KL(sampler ‖ learner).
    """
    delta_N = logprob_N - sampled_logprob_N
    ratio_N = torch.exp(delta_N)
    outside_N = (ratio_N < _NEAR_ONE[0]) | (ratio_N > _NEAR_ONE[1])
    return {
        "parity_logprob_max_abs_error": float(delta_N.abs().max()),
        "parity_logprob_mean_abs_error": float(delta_N.abs().mean()),
        "parity_ratio_mean": float(ratio_N.mean()),
        "parity_ratio_mean_abs_error": float((ratio_N - 1.0).abs().mean()),
        "parity_kl": float(k3_divergence(logprob_N, sampled_logprob_N).mean()),
        "parity_outside_share": float(outside_N.double().mean()),
    }


def ratio_metrics(
    logprob_N: Tensor, sampled_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> dict[str, float]:
    """The ratios of current to sampling-time policy over the tokens of an update.

    `clipped_fraction` counts tokens whose gradient the clip cuts off: ρ > 1 + clip_high with A > 0, or ρ < 1 − clip_low
    with A < 0. `active_fraction` counts tokens that move the weights at all: A ≠ 0 and not clipped.
    """
    ratio_N = torch.exp(logprob_N - sampled_logprob_N)
    too_high_N = (ratio_N > 1.0 + clip_high) & (advantage_N > 0)
    too_low_N = (ratio_N < 1.0 - clip_low) & (advantage_N < 0)
    clipped_N = too_high_N | too_low_N
    share_3 = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, device=ratio_N.device)
    quantile_3 = torch.quantile(ratio_N.double(), share_3)
    return {
        "ratio_mean": float(ratio_N.mean()),
        "ratio_std": float(ratio_N.std(correction=0)),
        "ratio_p10": float(quantile_3[0]),
        "ratio_p50": float(quantile_3[1]),
        "ratio_p90": float(quantile_3[2]),
        "kl": float(k3_divergence(logprob_N, sampled_logprob_N).mean()),
        "clipped_fraction": float(clipped_N.float().mean()),
        "active_fraction": float(((advantage_N != 0) & ~clipped_N).float().mean()),
    }
