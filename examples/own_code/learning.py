import torch
from torch import Tensor


def above_the_median(reward_G: Tensor) -> Tensor:
    """Reward minus the median of the group."""
    return reward_G - reward_G.median()


def sapo(logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, sequence_N: Tensor, **_clips: float) -> Tensor:
    """A soft gate instead of a clip: −A · σ(4 (ρ − 1))."""
    return -advantage_N * torch.sigmoid(4 * (torch.exp(logprob_N - old_logprob_N) - 1))
