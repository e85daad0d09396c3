"""From groups to a batch: each group's rewards become advantages, spread over the tokens that carry loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcprl.algorithms.advantages import grpo_advantages
from mcprl.algorithms.masks import Masks, learnable_tokens
from mcprl.records import Batch, Group

__all__ = ["make_batch"]


def make_batch(step: int, groups: Sequence[Group], masks: Masks) -> Batch:
    """A batch of whole groups with GRPO's advantages: the same for every learnable token of an episode, 0 elsewhere."""
    learnable: list[tuple[bool, ...]] = []
    advantages: list[tuple[float, ...]] = []
    for group in groups:
        reward_G = torch.tensor([t.reward for t in group.trajectories], dtype=torch.float64)
        for trajectory, advantage_1 in zip(group.trajectories, grpo_advantages(reward_G), strict=True):
            advantage = float(advantage_1)
            mask = learnable_tokens(trajectory, masks)
            learnable.append(mask)
            advantages.append(tuple(advantage if carries_loss else 0.0 for carries_loss in mask))
    return Batch(step=step, groups=tuple(groups), learnable=tuple(learnable), advantages=tuple(advantages))
