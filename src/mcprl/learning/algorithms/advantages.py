"""Advantages: how much better an episode, or one of its steps, was than expected."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, cast

import torch
from torch import Tensor

from mcprl.records import Trajectory


def floats(number_N: Tensor) -> list[float]:
    """Convert a one-dimensional tensor to a list of floats."""
    return cast("list[float]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]


def ints(number_N: Tensor) -> list[int]:
    """Convert a one-dimensional integer tensor to a list of ints."""
    return cast("list[int]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]


def steps_of(trajectory: Trajectory, learnable: Sequence[bool], kind: Literal["token", "turn"]) -> list[list[int]]:
    """Return the positions of the learnable tokens of each step. A step is one such token, or all those of a turn."""
    places = [place for place, carries_loss in enumerate(learnable) if carries_loss]
    if kind == "token":
        return [[place] for place in places]
    return [list(own) for _, own in groupby(places, key=lambda place: trajectory.turn_index[place])]


def step_rewards(trajectory: Trajectory, steps: Sequence[Sequence[int]]) -> list[float]:
    """Return the reward of each step. A turn's reward goes to the last step of the turn.

    If a turn has no learnable tokens, its reward goes to the last step before the turn, because that step led to it.
    If there is no such step, the reward is dropped.
    """
    _check_sum(trajectory)
    turn_of_step = [trajectory.turn_index[step[-1]] for step in steps]
    rewards = [0.0] * len(steps)
    for turn_index, turn in enumerate(trajectory.turns):
        last = bisect_right(turn_of_step, turn_index) - 1
        if last >= 0:
            rewards[last] += turn.reward
    # A non-finite reward may belong to no turn. It must still reach the advantages, so that the learner refuses
    # it.
    if steps and not math.isfinite(trajectory.reward):
        rewards[-1] = trajectory.reward
    return rewards


def _check_sum(trajectory: Trajectory) -> None:
    total = sum(turn.reward for turn in trajectory.turns)
    both_finite = math.isfinite(total) and math.isfinite(trajectory.reward)
    if both_finite and not math.isclose(total, trajectory.reward, rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(
            f"episode {trajectory.member} of task {trajectory.task_id}: the rewards of its turns add up to {total:g}, "
            f"but its reward is {trajectory.reward:g}"
        )


def grpo_advantages(reward_G: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Center and scale the rewards of one group: (r − mean) / (std + eps), std with Bessel's correction.

    If all rewards are equal, all advantages are 0. A group of one has no baseline and raises ValueError.
    """
    return dr_grpo_advantages(reward_G) / (reward_G.std() + eps)


def dr_grpo_advantages(reward_G: Tensor) -> Tensor:
    """Center the rewards of one group: r − mean. Without scaling, groups with a wider spread count for more."""
    if reward_G.ndim != 1 or reward_G.shape[0] < 2:
        raise ValueError(f"a group needs at least 2 rewards in one dimension, not shape {tuple(reward_G.shape)}")
    return torch.zeros_like(reward_G) if _is_constant(reward_G) else reward_G - reward_G.mean()


def rloo_advantages(reward_G: Tensor) -> Tensor:
    """Subtract the mean of the other rewards: r_i − (Σ_{j≠i} r_j) / (G − 1), equal to (r_i − mean) · G / (G − 1)."""
    return dr_grpo_advantages(reward_G) * (len(reward_G) / (len(reward_G) - 1))


def gae(reward_S: Tensor, value_S: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Return the generalized advantage estimates and the returns of the S steps of one episode, without gradient.

    δ_s = r_s + γ·v_{s+1} − v_s,   A_s = δ_s + γ·λ·A_{s+1},   R_s = A_s + v_s,   with A_S = v_S = 0

    An episode that ends at a limit (turns, tokens, context or time) is not bootstrapped, because the limit is part of
    the task. If the value at the limit were added, running into the limit would pay more than a wrong answer.
    """
    if reward_S.ndim != 1 or reward_S.shape != value_S.shape:
        raise ValueError(
            f"rewards {tuple(reward_S.shape)} and values {tuple(value_S.shape)} have different numbers of steps"
        )
    rewards, values = floats(reward_S), floats(value_S)
    advantages: list[float] = []
    advantage = next_value = 0.0
    # Plain floats, because with tensors each step of this recursion is a hundred times slower.
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * lam * advantage
        next_value = value
        advantages.append(advantage)
    advantage_S = reward_S.new_tensor(advantages[::-1])
    return advantage_S, advantage_S + value_S.detach()


def whitened(advantage_N: Tensor) -> Tensor:
    """Scale advantages to mean 0 and std 1: (A − mean) / std, std with Bessel's correction. Zeros if all are equal."""
    if _is_constant(advantage_N):
        return torch.zeros_like(advantage_N)
    return (advantage_N - advantage_N.mean()) / advantage_N.std()


def _is_constant(number_N: Tensor) -> bool:
    # Because of rounding, centering equal numbers can give about 1e-17 instead of 0. Dividing that by the deviation
    # would blow it up.
    return bool((number_N == number_N[:1]).all())
