"""GSPO against its sequence objective, CISPO against its formula: values by plain loops, gradients by autograd."""
# R2

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from mcprl.learning.algorithms import cispo_loss, gspo_loss, imitation_loss

logprobs = st.floats(min_value=-4.0, max_value=0.0)
columns = st.lists(
    st.tuples(logprobs, logprobs, st.floats(-3.0, 3.0), st.integers(0, 4)), min_size=1, max_size=20
)  # logprob, old logprob, advantage, sequence
LOW, HIGH = 0.2, 0.3


def tensors(rows):
    logprob_N, old_N, advantage_N, _ = torch.tensor(rows, dtype=torch.float64).unbind(1)
    sequence_N = torch.tensor([row[3] for row in rows])
    return logprob_N.clone().requires_grad_(), old_N, advantage_N, sequence_N


def sequence_ratio(rows, sequence: int) -> float:
    own = [row[0] - row[1] for row in rows if row[3] == sequence]
    return math.exp(math.fsum(own) / len(own))


def clip(ratio: float) -> float:
    return min(max(ratio, 1.0 - LOW), 1.0 + HIGH)


@given(columns)
def test_gspo_clips_the_ratio_of_the_sequence_whatever_the_order_of_its_tokens(rows):
    wanted = [
        -min(ratio * row[2], clip(ratio) * row[2])
        for row in rows
        if (ratio := sequence_ratio(rows, row[3])) is not None
    ]
    assert gspo_loss(*tensors(rows), clip_low=LOW, clip_high=HIGH).tolist() == pytest.approx(wanted, rel=1e-9)


@given(columns)
def test_a_gspo_token_has_the_gradient_of_its_own_logprob_times_the_ratio_of_the_sequence(rows):
    logprob_N, old_N, advantage_N, sequence_N = tensors(rows)
    gspo_loss(logprob_N, old_N, advantage_N, sequence_N, clip_low=LOW, clip_high=HIGH).sum().backward()
    for gradient, (_, _, advantage, sequence) in zip(logprob_N.grad.tolist(), rows, strict=True):
        ratio = sequence_ratio(rows, sequence)
        if min(abs(ratio - 1.0 + LOW), abs(ratio - 1.0 - HIGH)) < 1e-9:
            continue  # at the very edge either side is right
        cut_off = (advantage > 0 and ratio > 1.0 + HIGH) or (advantage < 0 and ratio < 1.0 - LOW)
        assert gradient == pytest.approx(0.0 if cut_off else -ratio * advantage, rel=1e-9, abs=1e-300)


@given(columns, st.lists(st.floats(-3.0, 3.0), min_size=5, max_size=5))
def test_with_one_advantage_a_sequence_gspo_is_the_objective_of_whole_sequences(rows, advantage_of):
    rows = [(logprob, old, advantage_of[sequence], sequence) for logprob, old, _, sequence in rows]
    present = sorted({row[3] for row in rows})
    edges = (1.0 - LOW, 1.0 + HIGH)
    assume(all(abs(sequence_ratio(rows, s) - edge) > 1e-9 for s in present for edge in edges))
    logprob_N, old_N, advantage_N, sequence_N = tensors(rows)
    loss_N = gspo_loss(logprob_N, old_N, advantage_N, sequence_N, clip_low=LOW, clip_high=HIGH)
    torch.stack([loss_N[sequence_N == s].mean() for s in present]).mean().backward()

    whole_N = logprob_N.detach().clone().requires_grad_()
    objectives = []
    for s in present:
        own_N = sequence_N == s
        ratio = (whole_N[own_N] - old_N[own_N]).mean().exp()
        objectives.append(-torch.minimum(ratio * advantage_of[s], ratio.clamp(*edges) * advantage_of[s]))
    torch.stack(objectives).mean().backward()
    torch.testing.assert_close(logprob_N.grad, whole_N.grad, rtol=1e-9, atol=1e-12)


def test_gspo_of_no_tokens_is_nothing():
    empty_N = torch.zeros(0)
    sequence_N = torch.zeros(0, dtype=torch.int64)
    assert gspo_loss(empty_N, empty_N, empty_N, sequence_N, clip_low=0.2, clip_high=0.2).shape == (0,)


@given(columns)
def test_cispo_weighs_the_logprob_with_a_clipped_ratio_and_cuts_no_gradient_off(rows):
    logprob_N, old_N, advantage_N, _ = tensors(rows)
    loss_N = cispo_loss(logprob_N, old_N, advantage_N, clip_low=LOW, clip_high=HIGH)
    weights = [clip(math.exp(logprob - old)) for logprob, old, _, _ in rows]
    wanted = [-w * row[2] * row[0] for w, row in zip(weights, rows, strict=True)]
    assert loss_N.tolist() == pytest.approx(wanted, rel=1e-9)
    loss_N.sum().backward()
    gradients = [-w * row[2] for w, row in zip(weights, rows, strict=True)]
    assert logprob_N.grad.tolist() == pytest.approx(gradients, rel=1e-9)


@given(st.lists(logprobs, min_size=1, max_size=20))
def test_imitation_is_the_negative_logprob(values):
    assert imitation_loss(torch.tensor(values, dtype=torch.float64)).tolist() == [-value for value in values]
