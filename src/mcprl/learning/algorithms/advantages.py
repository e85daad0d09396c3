"""Advantages: how much better than expected an episode, or a step of it, was."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, cast

import torch
from torch import Tensor

from mcprl.records import Trajectory

__all__ = [
    "dr_grpo_advantages",
    "floats",
    "gae",
    "grpo_advantages",
    "ints",
    "rloo_advantages",
    "step_rewards",
    "steps_of",
    "whitened",
]


def floats(number_N: Tensor) -> list[float]:
    """A one-dimensional tensor as a typed list."""
    return cast("list[float]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]


def ints(number_N: Tensor) -> list[int]:
    """A one-dimensional integer tensor as a typed list."""
    return cast("list[int]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]


def steps_of(trajectory: Trajectory, learnable: Sequence[bool], kind: Literal["token", "turn"]) -> list[list[int]]:
    """The places of the learnable tokens of each step: one token, or all tokens of one turn."""
    places = [place for place, carries_loss in enumerate(learnable) if carries_loss]
    if kind == "token":
        return [[place] for place in places]
    return [list(own) for _, own in groupby(places, key=lambda place: trajectory.turn_index[place])]


def step_rewards(trajectory: Trajectory, steps: Sequence[Sequence[int]]) -> list[float]:
    """The reward of each step: a turn's reward belongs to its last step.

    The reward of a turn without learnable tokens goes to the last step before it, whose choice led there; if there is
    no such step, no choice led there and the reward is dropped.
    """
    _check_sum(trajectory)
    turn_of_step = [trajectory.turn_index[step[-1]] for step in steps]
    rewards = [0.0] * len(steps)
    for turn_index, turn in enumerate(trajectory.turns):
        last = bisect_right(turn_of_step, turn_index) - 1
        if last >= 0:
            rewards[last] += turn.reward
    # A reward that is not finite must reach the advantages, where the learner refuses it, though no turn has it.
    if steps and not math.isfinite(trajectory.reward):
        rewards[-1] = trajectory.reward
    return rewards


def _check_sum(trajectory: Trajectory) -> None:
    total = sum(turn.reward for turn in trajectory.turns)
    both_finite = math.isfinite(total) and math.isfinite(trajectory.reward)
    if both_finite and not math.isclose(total, trajectory.reward, rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(
            f"trajectory {trajectory.task_id}/{trajectory.member}: the rewards of its turns add up to {total:g}, "
            f"and its reward is {trajectory.reward:g}"
        )


def grpo_advantages(reward_G: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Rewards of one group, centred and scaled: (r − mean) / (std + eps), std with Bessel's correction.

    A group without variance gives zeros. A group of one has no baseline and is an error.
    """
    return dr_grpo_advantages(reward_G) / (reward_G.std() + eps)


def dr_grpo_advantages(reward_G: Tensor) -> Tensor:
    """Rewards of one group, centred: r − mean. Not scaled, so a group counts by the spread of its rewards."""
    if reward_G.ndim != 1 or reward_G.shape[0] < 2:
        raise ValueError(f"a group needs at least 2 rewards in one dimension, not shape {tuple(reward_G.shape)}")
    return torch.zeros_like(reward_G) if _is_constant(reward_G) else reward_G - reward_G.mean()


def rloo_advantages(reward_G: Tensor) -> Tensor:
    """Each reward minus the mean of the others: r_i − (Σ_{j≠i} r_j) / (G − 1), which is (r_i − mean) · G / (G − 1)."""
    return dr_grpo_advantages(reward_G) * (len(reward_G) / (len(reward_G) - 1))


def gae(reward_S: Tensor, value_S: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and returns of the S steps of one episode, without gradient.

    δ_s = r_s + γ·v_{s+1} − v_s,   A_s = δ_s + γ·λ·A_{s+1},   R_s = A_s + v_s,   with A_S = v_S = 0

    There is no bootstrapping: a limit on turns, tokens, context or time is part of the task. If the value at the limit
    were added, running into it would pay more than a wrong answer.
    """
    if reward_S.ndim != 1 or reward_S.shape != value_S.shape:
        raise ValueError(f"rewards {tuple(reward_S.shape)} and values {tuple(value_S.shape)} are not of the same steps")
    rewards, values = floats(reward_S), floats(value_S)
    advantages: list[float] = []
    advantage = next_value = 0.0
    # On plain floats: tensors would make each step of this recursion a hundred times slower.
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * next_value - value + gamma * lam * advantage
        next_value = value
        advantages.append(advantage)
    advantage_S = reward_S.new_tensor(advantages[::-1])
    return advantage_S, advantage_S + value_S.detach()


def whitened(advantage_N: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1: (A − mean) / std, std with Bessel's correction. Zeros if constant."""
    if _is_constant(advantage_N):
        return torch.zeros_like(advantage_N)
    return (advantage_N - advantage_N.mean()) / advantage_N.std()


def _is_constant(number_N: Tensor) -> bool:
    # Rounding makes the centred numbers of a constant selection about 1e-17 instead of 0; dividing by their deviation
    # would blow that up.
    return bool((number_N == number_N[:1]).all())
