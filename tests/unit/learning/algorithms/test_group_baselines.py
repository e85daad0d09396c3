"""Advantages against a group (GRPO, Dr. GRPO, RLOO), and whitening, against plain Python."""
# R1, R11

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.learning.algorithms import dr_grpo_advantages, grpo_advantages, rloo_advantages, whitened

rewards = st.floats(min_value=-10.0, max_value=10.0, allow_subnormal=False).map(lambda x: round(x, 6))
varied = st.lists(rewards, min_size=2, max_size=40).filter(lambda numbers: max(numbers) - min(numbers) > 1e-3)


def double(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def centered(group: list[float]) -> list[float]:
    return [reward - math.fsum(group) / len(group) for reward in group]


def above_the_others(group: list[float]) -> list[float]:
    return [r - math.fsum(group[:i] + group[i + 1 :]) / (len(group) - 1) for i, r in enumerate(group)]


FORMULAS = {
    grpo_advantages: lambda group: [number / (statistics.stdev(group) + 1e-6) for number in centered(group)],
    dr_grpo_advantages: centered,
    rloo_advantages: above_the_others,
}
each_kind = pytest.mark.parametrize("relative", FORMULAS)


@each_kind
@given(group=varied)
def test_an_advantage_is_that_of_its_formula(relative, group):
    assert relative(double(group)).tolist() == pytest.approx(FORMULAS[relative](group), rel=1e-9, abs=1e-9)


@each_kind
@given(reward=st.floats(-1e6, 1e6), size=st.integers(2, 64), dtype=st.sampled_from([torch.float32, torch.float64]))
@example(reward=0.1 + 0.2, size=3, dtype=torch.float64)
@example(reward=1 / 3, size=39, dtype=torch.float64)
def test_a_group_without_variance_gives_exact_zeros_however_it_rounds(relative, reward, size, dtype):
    assert relative(torch.full((size,), reward, dtype=dtype)).eq(0.0).all()


@each_kind
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 2)])
def test_anything_but_a_group_of_two_or_more_is_refused(relative, shape):
    with pytest.raises(ValueError, match="at least 2 rewards"):
        relative(torch.ones(shape))


@each_kind
def test_a_reward_that_is_no_number_leaves_no_number_in_its_group(relative):
    assert relative(double([1.0, math.nan, 0.0])).isnan().all()
    assert relative(double([1.0, math.inf, 0.0])).isfinite().sum() == 0


@given(varied)
def test_a_white_selection_has_mean_0_and_deviation_1_and_keeps_its_shape(numbers):
    wanted = [number / statistics.stdev(numbers) for number in centered(numbers)]
    assert whitened(double(numbers)).tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("numbers", [[], [3.0], [0.1] * 7])
def test_a_constant_selection_whitens_to_zeros(numbers):
    assert whitened(double(numbers)).tolist() == [0.0] * len(numbers)
