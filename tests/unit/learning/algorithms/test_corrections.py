"""The gate on ratios and the weights of tokens that another policy sampled."""
# R6

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import importance_weights, inside_gate

logprobs = st.floats(-8.0, 0.0)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=20))
def test_a_gate_lets_its_bounds_and_what_is_between_through(ratios):
    ratios = [*ratios, 0.25, 4.0, 0.2499, 4.001]
    wanted = [0.25 <= ratio <= 4.0 for ratio in ratios]
    assert inside_gate(torch.tensor(ratios, dtype=torch.float64), (0.25, 4.0)).tolist() == wanted


def test_a_ratio_that_is_no_number_stays_outside():
    assert inside_gate(torch.tensor([math.nan, math.inf, 1.0]), (0.25, 4.0)).tolist() == [False, False, True]


@given(st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=20), st.floats(1.0, 5.0))
def test_a_weight_is_the_ratio_of_learner_to_sampler_up_to_the_cap(rows, cap):
    old_N, sampled_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    wanted = [min(math.exp(old - sampled), cap) for old, sampled in rows]
    assert importance_weights(old_N, sampled_N, cap=cap).tolist() == pytest.approx(wanted, rel=1e-9)


def test_a_weight_has_no_gradient_and_never_overflows():
    old_N = torch.tensor([0.0, -1.0], requires_grad=True)
    weight_N = importance_weights(old_N, torch.tensor([-500.0, -1.0]), cap=2.0)
    assert not weight_N.requires_grad
    assert weight_N.tolist() == [2.0, 1.0]
