"""Which estimate of the divergence has which gradient, on a small softmax where every expectation can be enumerated.

Each test compares the gradient that tokens sampled from the policy give on average, over all tokens of the vocabulary
with their exact probabilities, with the gradient of the divergence itself.
"""
# R5

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mcprl.learning.algorithms import divergence

logits = st.lists(st.tuples(st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)), min_size=2, max_size=7)


def softmaxes(rows) -> tuple[Tensor, Tensor, Tensor]:
    """The policy's logits, which learn, its logprobs, and those of a reference."""
    logit_V, reference_V = torch.tensor(rows, dtype=torch.float64).unbind(1)
    logit_V = logit_V.clone().requires_grad_()
    return logit_V, logit_V.log_softmax(0), reference_V.log_softmax(0)


def gradient(number: Tensor, logit_V: Tensor) -> Tensor:
    return torch.autograd.grad(number, logit_V)[0]


def mean_loss_gradient(rows, estimator) -> Tensor:
    """Of the estimate as a loss: tokens are drawn by probabilities that do not learn, as in every update."""
    logit_V, logprob_V, reference_V = softmaxes(rows)
    loss_V = divergence(logprob_V, reference_V, estimator)
    return gradient((logprob_V.detach().exp() * loss_V).sum(), logit_V)


def true_gradient(rows, *, reverse: bool = False) -> Tensor:
    """Of KL(policy ‖ reference), or the other way round, written out."""
    logit_V, logprob_V, reference_V = softmaxes(rows)
    first_V, second_V = (reference_V, logprob_V) if reverse else (logprob_V, reference_V)
    return gradient((first_V.exp() * (first_V - second_V)).sum(), logit_V)


@given(logits)
def test_in_the_loss_k1_has_no_gradient_k2_that_of_the_divergence_and_k3_that_of_the_reverse_divergence(rows):
    for estimator, wanted_V in (
        ("k1", torch.zeros(len(rows), dtype=torch.float64)),
        ("k2", true_gradient(rows)),
        ("k3", true_gradient(rows, reverse=True)),
    ):
        torch.testing.assert_close(mean_loss_gradient(rows, estimator), wanted_V, rtol=1e-9, atol=1e-10)
