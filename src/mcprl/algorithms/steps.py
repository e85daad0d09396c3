"""The steps of an episode, as a critic sees it: which tokens make one up, and what it earned."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from mcprl.records import Trajectory

__all__ = ["step_rewards", "steps_of"]


def steps_of(trajectory: Trajectory, learnable: Sequence[bool], kind: Literal["token", "turn"]) -> list[list[int]]:
    """The places of the learnable tokens of each step: one token, or all those of one turn."""
    places = [place for place, carries_loss in enumerate(learnable) if carries_loss]
    if kind == "token":
        return [[place] for place in places]
    return [list(own) for _, own in groupby(places, key=lambda place: trajectory.turn_index[place])]


def step_rewards(trajectory: Trajectory, steps: Sequence[Sequence[int]]) -> list[float]:
    """What each step earned: a turn's reward stands on its last step.

    The reward of a turn without learnable tokens goes to the last step before it, whose choice led there; where there
    is none, no choice led there and it is dropped.
    """
    _check_sum(trajectory)
    turn_of_step = [trajectory.turn_index[step[-1]] for step in steps]
    rewards = [0.0] * len(steps)
    for turn_index, turn in enumerate(trajectory.turns):
        last = bisect_right(turn_of_step, turn_index) - 1
        if last >= 0:
            rewards[last] += turn.reward
    # A reward that is no number must reach the advantages, where the learner refuses it, though no turn shows it.
    if steps and not math.isfinite(trajectory.reward):
        rewards[-1] = trajectory.reward
    return rewards


def _check_sum(trajectory: Trajectory) -> None:
    total = sum(turn.reward for turn in trajectory.turns)
    both_are_numbers = math.isfinite(total) and math.isfinite(trajectory.reward)
    if both_are_numbers and not math.isclose(total, trajectory.reward, rel_tol=1e-9, abs_tol=1e-9):
        raise ValueError(
            f"trajectory {trajectory.task_id}/{trajectory.member}: its turns earned {total:g} together, "
            f"and its reward is {trajectory.reward:g}"
        )
