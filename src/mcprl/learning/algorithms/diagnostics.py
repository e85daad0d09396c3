"""Metrics that distinguish a healthy update from a broken one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcprl.learning.algorithms.losses import divergence
from mcprl.records import Trajectory

# Before any update, a ratio outside this range means that sampler and learner disagree on the token.
_NEAR_ONE = (0.9, 1.1)


def parity_metrics(logprob_N: Tensor, sampled_logprob_N: Tensor) -> dict[str, float]:
    """Measure how far learner and sampler disagree about the logprobs of tokens before any update.

    On-policy, the mean ratio is 1 and all other metrics are 0. `parity_kl` is the k3 estimate of KL(sampler ‖ learner).
    """
    delta_N = logprob_N - sampled_logprob_N
    ratio_N = torch.exp(delta_N)
    outside_N = (ratio_N < _NEAR_ONE[0]) | (ratio_N > _NEAR_ONE[1])
    return {
        "parity_logprob_max_abs_error": float(delta_N.abs().max()),
        "parity_logprob_mean_abs_error": float(delta_N.abs().mean()),
        "parity_ratio_mean": float(ratio_N.mean()),
        "parity_ratio_mean_abs_error": float((ratio_N - 1.0).abs().mean()),
        "parity_kl": float(divergence(sampled_logprob_N, logprob_N, "k3").mean()),
        "parity_outside_share": float(outside_N.double().mean()),
    }


def ratio_metrics(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> dict[str, float]:
    """Summarize the probability ratios (policy over old policy) of the tokens of an update.

    `clipped_fraction` is the fraction of tokens whose gradient is 0 because of the clip: ρ > 1 + clip_high with A > 0,
    or ρ < 1 − clip_low with A < 0. `active_fraction` is the fraction of tokens that move the weights: A ≠ 0 and not
    clipped. `ratio_mean_positive` is the mean over tokens with A > 0, `ratio_mean_negative` over tokens with A < 0, and
    both are 1 without such tokens. A healthy update raises the first and lowers the second.
    """
    ratio_N = torch.exp(logprob_N - old_logprob_N)
    too_high_N = (ratio_N > 1.0 + clip_high) & (advantage_N > 0)
    too_low_N = (ratio_N < 1.0 - clip_low) & (advantage_N < 0)
    clipped_N = too_high_N | too_low_N
    p10, p50, p90 = _quantiles(ratio_N.double(), (0.1, 0.5, 0.9))
    return {
        "ratio_mean": float(ratio_N.mean()),
        "ratio_mean_positive": _mean_or_one(ratio_N[advantage_N > 0]),
        "ratio_mean_negative": _mean_or_one(ratio_N[advantage_N < 0]),
        "ratio_std": float(ratio_N.std(correction=0)),
        "ratio_p10": p10,
        "ratio_p50": p50,
        "ratio_p90": p90,
        "clipped_fraction": float(clipped_N.double().mean()),
        "active_fraction": float(((advantage_N != 0) & ~clipped_N).double().mean()),
    }


def explained_variance(value_N: Tensor, return_N: Tensor) -> float:
    """Return the share of the returns' variance that the value head explains: 1 − Var(R − v) / Var(R).

    1: all of it; 0: no more than a constant would; below 0: less than a constant would. The result is 0 if the returns
    have no variance.
    """
    if bool((return_N == return_N[:1]).all()):
        return 0.0
    return 1.0 - float((return_N - value_N).double().var() / return_N.double().var())


def staleness_metrics(trajectories: Sequence[Trajectory], newest_version: int) -> dict[str, float]:
    """Measure the age of the sampled tokens: how many versions their weights were behind the newest weights."""
    ages = [
        newest_version - version
        for trajectory in trajectories
        for version, sampled in zip(trajectory.weights_version, trajectory.sampled, strict=True)
        if sampled
    ]
    return {"staleness_mean": sum(ages) / len(ages) if ages else 0.0, "staleness_max": float(max(ages, default=0))}


def _quantiles(number_N: Tensor, shares: Sequence[float]) -> list[float]:
    """Compute quantiles with linear interpolation. torch.quantile does the same, but for at most 2^24 numbers."""
    sorted_N = number_N.sort().values
    found: list[float] = []
    for share in shares:
        place = share * (len(sorted_N) - 1)
        low, high = sorted_N[math.floor(place)], sorted_N[math.ceil(place)]
        found.append(float(torch.lerp(low, high, place - math.floor(place))))
    return found


def _mean_or_one(ratio_N: Tensor) -> float:
    return float(ratio_N.mean()) if len(ratio_N) else 1.0
