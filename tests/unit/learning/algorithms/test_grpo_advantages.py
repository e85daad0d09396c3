"""GRPO's advantages against the formula written out in numpy and in plain Python."""
# R1

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import grpo_advantages

rewards = st.floats(min_value=-10.0, max_value=10.0, allow_subnormal=False).map(lambda x: round(x, 6))
groups = st.lists(rewards, min_size=2, max_size=16)
varied_groups = groups.filter(lambda group: max(group) - min(group) > 1e-3)


def advantages(group: list[float], **options: float) -> np.ndarray:
    return grpo_advantages(torch.tensor(group, dtype=torch.float64), **options).numpy()


def skyrl_group_norm(scores: list[float], epsilon: float = 1e-6) -> list[float]:
    """SkyRL's GRPO: the score less the group's mean, over the Bessel-corrected deviation plus epsilon."""
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
    return [(score - mean) / (math.sqrt(variance) + epsilon) for score in scores]


@given(varied_groups)
def test_advantages_are_those_of_numpy(group):
    wanted = (np.array(group) - np.mean(group)) / (np.std(group, ddof=1) + 1e-6)
    np.testing.assert_allclose(advantages(group), wanted, rtol=1e-9, atol=1e-9)


@given(varied_groups)
def test_advantages_are_those_of_skyrls_formula(group):
    np.testing.assert_allclose(advantages(group), skyrl_group_norm(group), rtol=1e-9, atol=1e-9)


def test_two_members_get_plus_and_minus_the_root_of_a_half():
    np.testing.assert_allclose(advantages([1.0, 0.0], eps=0.0), [math.sqrt(0.5), -math.sqrt(0.5)], rtol=1e-15)


@given(st.floats(min_value=-1e6, max_value=1e6), st.integers(2, 64), st.sampled_from([torch.float32, torch.float64]))
def test_a_group_without_variance_gives_exact_zeros(reward, size, dtype):
    assert grpo_advantages(torch.full((size,), reward, dtype=dtype)).eq(0.0).all()


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3, 1e-9, 0.1 + 0.2])
def test_rewards_that_binary_fractions_cannot_hold_give_exact_zeros_too(reward):
    for size in range(2, 40):
        assert advantages([reward] * size).tolist() == [0.0] * size


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 2)])
def test_anything_but_a_group_of_two_or_more_is_refused(shape):
    with pytest.raises(ValueError, match="at least 2 rewards"):
        grpo_advantages(torch.ones(shape))


@given(varied_groups, st.floats(-100.0, 100.0))
def test_a_shift_of_all_rewards_changes_nothing(group, shift):
    np.testing.assert_allclose(advantages([r + shift for r in group]), advantages(group), rtol=1e-6, atol=1e-8)


@given(varied_groups, st.floats(0.01, 100.0))
def test_a_positive_scale_of_all_rewards_changes_nothing_but_for_eps(group, scale):
    scaled = [scale * r for r in group]
    np.testing.assert_allclose(advantages(scaled, eps=0.0), advantages(group, eps=0.0), rtol=1e-6, atol=1e-8)


@given(varied_groups)
def test_advantages_sum_to_nothing_and_keep_the_order_of_rewards(group):
    result = advantages(group)
    assert abs(result.sum()) < 1e-9
    assert np.argsort(group, kind="stable").tolist() == np.argsort(result, kind="stable").tolist()
