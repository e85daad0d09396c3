"""Advantages: how much better than expected an episode was."""

from __future__ import annotations

from torch import Tensor

__all__ = ["grpo_advantages"]


def grpo_advantages(reward_G: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Rewards of one group, centred and scaled: (r − mean) / (std + eps), std with Bessel's correction.

    A group without variance gives zeros: nothing in it is better than anything else. A group of one has no baseline
    and is an error.
    """
    if reward_G.ndim != 1 or reward_G.shape[0] < 2:
        raise ValueError(f"a group needs at least 2 rewards in one dimension, not shape {tuple(reward_G.shape)}")
    centred_G = reward_G - reward_G.mean()
    # Rounding makes the centred rewards of a constant group about 1e-17 rather than 0; eps would blow that up.
    if bool((reward_G == reward_G[0]).all()):
        return centred_G * 0.0
    return centred_G / (reward_G.std() + eps)
