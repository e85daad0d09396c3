"""What tokens weigh in the loss of a minibatch, against losses that are averaged by hand."""

from __future__ import annotations

import statistics
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcprl.learning.algorithms import sequence_weights

# Losses of the learnable tokens of each sequence; some have none.
sequences = st.lists(st.lists(st.floats(-3.0, 3.0), max_size=6), min_size=1, max_size=6)


def weighted_sum(losses: list[list[float]], how, constant_tokens: int = 8) -> float:
    counts = torch.tensor([len(own) for own in losses])
    weights = sequence_weights(counts, how, constant_tokens=constant_tokens)
    assert weights.dtype is torch.float64
    return sum(weight * sum(own) for weight, own in zip(weights.tolist(), losses, strict=True))


@given(sequences.filter(any))
def test_token_mean_is_the_mean_of_all_tokens(losses):
    assert weighted_sum(losses, "token_mean") == pytest.approx(statistics.fmean(list(chain(*losses))), abs=1e-9)


@given(sequences.filter(any))
def test_sequence_mean_is_the_mean_of_the_means_of_sequences_that_have_tokens(losses):
    wanted = statistics.fmean(statistics.fmean(own) for own in losses if own)
    assert weighted_sum(losses, "sequence_mean") == pytest.approx(wanted, abs=1e-9)


@given(sequences, st.integers(1, 50))
def test_constant_divides_by_the_same_number_whatever_the_lengths_are(losses, tokens):
    wanted = sum(list(chain(*losses))) / (len(losses) * tokens)
    assert weighted_sum(losses, "constant", tokens) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [3, 0, 2]])
def test_a_sequence_without_tokens_weighs_nothing(how, counts):
    weights = sequence_weights(torch.tensor(counts, dtype=torch.int64), how, constant_tokens=8).tolist()
    assert [weight == 0.0 for weight in weights] == [count == 0 for count in counts]
