"""Generalised advantage estimates against their definition as a sum, and at the two ends of λ."""
# R3

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import gae

numbers = st.floats(-5.0, 5.0)
episodes = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20)
shares = st.floats(0.0, 1.0)


def estimates(steps, *, gamma: float, lam: float) -> tuple[list[float], list[float]]:
    reward_S, value_S = torch.tensor(steps, dtype=torch.float64).unbind(1)
    advantage_S, return_S = gae(reward_S, value_S, gamma=gamma, lam=lam)
    return advantage_S.tolist(), return_S.tolist()


@given(episodes, shares, shares)
def test_an_advantage_is_the_discounted_sum_of_the_one_step_errors_from_there_on(steps, gamma, lam):
    values = [value for _, value in steps] + [0.0]
    errors = [reward + gamma * values[s + 1] - values[s] for s, (reward, _) in enumerate(steps)]
    wanted = [
        sum((gamma * lam) ** (later - s) * errors[later] for later in range(s, len(steps))) for s in range(len(steps))
    ]
    advantages, returns = estimates(steps, gamma=gamma, lam=lam)
    assert advantages == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    assert returns == pytest.approx([a + v for a, v in zip(wanted, values, strict=False)], rel=1e-9, abs=1e-9)


def test_an_episode_without_steps_has_no_estimates():
    advantage_S, return_S = gae(torch.zeros(0), torch.zeros(0), gamma=0.9, lam=0.9)
    assert advantage_S.shape == return_S.shape == (0,)


def test_a_critic_gets_no_gradient_through_its_estimates():
    value_S = torch.ones(3, requires_grad=True)
    advantage_S, return_S = gae(torch.ones(3), value_S, gamma=0.9, lam=0.9)
    assert not advantage_S.requires_grad
    assert not return_S.requires_grad


def test_rewards_and_values_of_different_steps_are_refused():
    with pytest.raises(ValueError, match="have different numbers of steps"):
        gae(torch.ones(3), torch.ones(2), gamma=0.9, lam=0.9)
