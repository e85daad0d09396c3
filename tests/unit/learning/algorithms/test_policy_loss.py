"""The clipped loss: values against plain loops, gradients against finite differences."""
# R2

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import clipped_policy_loss

logprobs = st.floats(min_value=-8.0, max_value=0.0)
columns = st.lists(st.tuples(logprobs, logprobs, st.floats(-3.0, 3.0)), min_size=1, max_size=20)
clips = st.tuples(st.floats(0.05, 0.5), st.floats(0.05, 0.9))


def tensors(rows, *, requires_grad: bool = False):
    logprob_N, sampled_N, advantage_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return logprob_N.clone().requires_grad_(requires_grad), sampled_N, advantage_N


def loss_by_hand(logprob: float, sampled: float, advantage: float, low: float, high: float) -> float:
    ratio = math.exp(logprob - sampled)
    return -min(ratio * advantage, min(max(ratio, 1.0 - low), 1.0 + high) * advantage)


def is_cut_off(logprob: float, sampled: float, advantage: float, low: float, high: float) -> bool:
    ratio = math.exp(logprob - sampled)
    return (advantage > 0 and ratio > 1.0 + high) or (advantage < 0 and ratio < 1.0 - low)


@given(columns, clips)
def test_the_loss_is_that_of_a_plain_loop(rows, clip):
    low, high = clip
    wanted = [loss_by_hand(*row, low, high) for row in rows]
    assert clipped_policy_loss(*tensors(rows), clip_low=low, clip_high=high).tolist() == pytest.approx(wanted, rel=1e-9)


@given(columns, clips)
def test_the_gradient_is_exactly_zero_where_clipped_and_minus_ratio_times_advantage_elsewhere(rows, clip):
    low, high = clip
    logprob_N, sampled_N, advantage_N = tensors(rows, requires_grad=True)
    clipped_policy_loss(logprob_N, sampled_N, advantage_N, clip_low=low, clip_high=high).sum().backward()
    for gradient, (logprob, sampled, advantage) in zip(logprob_N.grad.tolist(), rows, strict=True):
        ratio = math.exp(logprob - sampled)
        if min(abs(ratio - 1.0 + low), abs(ratio - 1.0 - high)) < 1e-9:
            continue  # at the very edge either side is right
        if is_cut_off(logprob, sampled, advantage, low, high):
            assert gradient == 0.0
        else:
            assert gradient == pytest.approx(-ratio * advantage, rel=1e-9, abs=1e-300)


@given(st.lists(st.tuples(logprobs, st.floats(-3.0, 3.0, allow_subnormal=False)), min_size=1, max_size=20))
def test_at_ratio_one_the_gradient_is_that_of_reinforce(rows):
    sampled_N, advantage_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    logprob_N = sampled_N.clone().requires_grad_()
    clipped_policy_loss(logprob_N, sampled_N, advantage_N, clip_low=0.2, clip_high=0.2).sum().backward()
    assert logprob_N.grad.tolist() == (-advantage_N).tolist()
