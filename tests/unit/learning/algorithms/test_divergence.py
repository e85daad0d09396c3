"""Estimates of the divergence token by token, their expectation by enumeration, and the steered coefficient."""
# R5

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import divergence, next_coefficient

logprobs = st.floats(min_value=-8.0, max_value=0.0)
columns = st.lists(st.tuples(logprobs, logprobs), min_size=1, max_size=20)
BY_HAND = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1.0 + d}


@given(columns, st.sampled_from(sorted(BY_HAND)))
def test_an_estimate_is_that_of_its_formula(rows, estimator):
    policy_N, reference_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    wanted = [BY_HAND[estimator](policy - reference) for policy, reference in rows]
    assert divergence(policy_N, reference_N, estimator).tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@given(columns)
def test_k2_and_k3_are_never_negative(rows):
    policy_N, reference_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    assert (divergence(policy_N, reference_N, "k2") >= 0.0).all()
    assert (divergence(policy_N, reference_N, "k3") >= 0.0).all()


@given(st.lists(logprobs, min_size=1, max_size=20), st.sampled_from(sorted(BY_HAND)))
def test_the_divergence_of_equal_logprobs_is_exactly_zero(values, estimator):
    logprob_N = torch.tensor(values)
    assert divergence(logprob_N, logprob_N, estimator).tolist() == [0.0] * len(values)


def test_k3_keeps_its_digits_where_the_two_are_very_near():
    # exp(−d) − 1 + d taken literally in float32 would give 0 or noise here; the true value is d²/2.
    delta = 1e-3
    result = float(divergence(torch.tensor([-1.0]), torch.tensor([-1.0 + delta]), "k3"))
    assert result == pytest.approx(delta**2 / 2, rel=0.1)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.4, 1.0), (0.44, 1.01), (0.38, 0.995), (4.0, 1.02), (0.0, 0.98), (-1.0, 0.98), (math.inf, 1.02)],
)
def test_the_coefficient_follows_the_divergence_by_at_most_a_fifth_of_a_horizon(kl, factor):
    assert next_coefficient(0.05, kl, target=0.4, horizon=10) == pytest.approx(0.05 * factor, rel=1e-12)


def test_a_divergence_that_is_no_number_does_not_poison_the_coefficient():
    with pytest.raises(ValueError, match="cannot be adapted to a KL of NaN"):
        next_coefficient(0.05, math.nan, target=0.4, horizon=10)
