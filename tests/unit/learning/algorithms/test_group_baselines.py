"""Advantages against a group without scaling (Dr. GRPO, RLOO), and whitening, against plain Python."""
# R1, R11

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import dr_grpo_advantages, grpo_advantages, rloo_advantages, whitened

rewards = st.floats(min_value=-10.0, max_value=10.0, allow_subnormal=False).map(lambda x: round(x, 6))
groups = st.lists(rewards, min_size=2, max_size=16)
varied = st.lists(rewards, min_size=2, max_size=40).filter(lambda numbers: max(numbers) - min(numbers) > 1e-3)


def double(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@given(groups)
def test_dr_grpo_is_the_reward_less_the_mean(group):
    wanted = [reward - math.fsum(group) / len(group) for reward in group]
    assert dr_grpo_advantages(double(group)).tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@given(groups)
def test_rloo_is_the_reward_less_the_mean_of_the_others(group):
    wanted = [r - math.fsum(group[:i] + group[i + 1 :]) / (len(group) - 1) for i, r in enumerate(group)]
    assert rloo_advantages(double(group)).tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("relative", [dr_grpo_advantages, rloo_advantages])
@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3, -1e6])
def test_a_group_without_variance_gives_exact_zeros_however_it_rounds(relative, reward):
    for size in range(2, 20):
        assert relative(double([reward] * size)).tolist() == [0.0] * size


@pytest.mark.parametrize("relative", [dr_grpo_advantages, rloo_advantages])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 2)])
def test_anything_but_a_group_has_no_baseline(relative, shape):
    with pytest.raises(ValueError, match="at least 2 rewards"):
        relative(torch.ones(shape))


@pytest.mark.parametrize("relative", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
def test_a_reward_that_is_no_number_leaves_no_number_in_its_group(relative):
    assert relative(double([1.0, math.nan, 0.0])).isnan().all()
    assert relative(double([1.0, math.inf, 0.0])).isfinite().sum() == 0


@given(varied)
def test_a_white_selection_has_mean_0_and_deviation_1_and_keeps_its_shape(numbers):
    result = whitened(double(numbers)).tolist()
    assert statistics.fmean(result) == pytest.approx(0.0, abs=1e-9)
    assert statistics.stdev(result) == pytest.approx(1.0, rel=1e-9)
    scale, shift = statistics.stdev(numbers), statistics.fmean(numbers)
    assert [scale * x + shift for x in result] == pytest.approx(numbers, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("numbers", [[], [3.0], [0.1] * 7])
def test_a_constant_selection_whitens_to_zeros(numbers):
    assert whitened(double(numbers)).tolist() == [0.0] * len(numbers)
