"""How far two policies are apart, and how a penalty on that is steered."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Estimator", "divergence", "next_coefficient"]

Estimator = Literal["k1", "k2", "k3"]


def divergence(logprob_N: Tensor, reference_logprob_N: Tensor, estimator: Estimator) -> Tensor:
    """Estimate of KL(policy ‖ reference) for each token, for tokens that were sampled from the policy.

    With d = logp − logp_ref:

    k1   d                   unbiased. As a loss its expected gradient is 0; taken off the reward, it is right
    k2   d² / 2              biased, but as a loss it has the gradient of the divergence, on-policy
    k3   exp(−d) − 1 + d     unbiased and never negative. As a loss its gradient is that of KL(reference ‖ policy)

    Tokens of a sampler and the learner's logprobs of them: KL(sampler ‖ learner) is divergence(sampled, learner, …).
    """
    difference_N = logprob_N - reference_logprob_N
    match estimator:
        case "k1":
            return difference_N
        case "k2":
            return 0.5 * difference_N.square()
        case "k3":
            # expm1 keeps the digits where the two policies are very near.
            return torch.expm1(-difference_N) + difference_N


def next_coefficient(coefficient: float, kl: float, *, target: float, horizon: int) -> float:
    """The penalty's coefficient after one update: coefficient · (1 + clip(kl / target − 1, −0.2, 0.2) / horizon).

    It rises where the measured divergence `kl` is above its target and falls where it is below.
    """
    if math.isnan(kl):
        raise ValueError("a divergence that is no number steers nothing")
    off_target = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + off_target / horizon)
