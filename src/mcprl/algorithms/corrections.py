"""Corrections for tokens that another policy sampled than the one that learns: older weights, other arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["importance_weights", "inside_gate"]


def inside_gate(ratio_N: Tensor, gate: tuple[float, float]) -> Tensor:
    """True where low ≤ ρ ≤ high. A ratio that is no number is outside."""
    low, high = gate
    return (ratio_N >= low) & (ratio_N <= high)


def importance_weights(old_logprob_N: Tensor, sampled_logprob_N: Tensor, *, cap: float) -> Tensor:
    """min(exp(logp_old − logp_sampled), cap), without gradient.

    What a token weighs that the sampler drew by other odds than the learner has for it. The cap bounds how much one
    token can weigh, at the price of a bias where it cuts.
    """
    return torch.exp(old_logprob_N - sampled_logprob_N).clamp(max=cap).detach()
