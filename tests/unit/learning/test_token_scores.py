"""Logprobs and entropies without whole logits: held against autograd through whole logits in 64 bits."""
# R11

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mcprl.learning import packing
from mcprl.learning.packing import Targets, TokenScorer

TOKENS, HIDDEN = 37, 24


def made_targets(vocabulary: int, *, masked: bool, tokens: int = TOKENS) -> Targets:
    """Tokens at several temperatures; masked, each with its own admissible set: from one token (itself) to all."""
    generator = torch.Generator().manual_seed(vocabulary)
    token_id_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
    token_id_N[0] = vocabulary - 1  # the last one has its bit in a word that is not full
    temperature_N = torch.tensor([0.6, 1.0, 1.7])[torch.arange(tokens) % 3]
    if not masked:
        return Targets(token_id_N, temperature_N, None)
    density_N1 = torch.linspace(0.0, 1.0, tokens)[:, None]
    admissible_NV = torch.rand(tokens, vocabulary, generator=generator) < density_N1
    admissible_NV[torch.arange(tokens), token_id_N] = True
    return Targets(token_id_N, temperature_N, packed_words(admissible_NV))


def packed_words(admissible_NV: Tensor) -> Tensor:
    """32 tokens an int32, the first in the lowest bit; the bits behind the last token are set, and mean nothing."""
    rows: list[list[int]] = []
    for row in admissible_NV.tolist():
        row = row + [True] * (-len(row) % 32)
        words = [sum(bit << i for i, bit in enumerate(row[first : first + 32])) for first in range(0, len(row), 32)]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32)


def admissible_of(targets: Targets, vocabulary: int) -> Tensor:
    if targets.admissible_NW is None:
        return torch.ones(len(targets.token_id_N), vocabulary, dtype=torch.bool)
    bits = [[word >> i & 1 for word in row for i in range(32)][:vocabulary] for row in targets.admissible_NW.tolist()]
    return torch.tensor(bits, dtype=torch.bool)


def by_whole_logits(hidden_ND: Tensor, weight_VD: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    logit_NV = hidden_ND.double() @ weight_VD.double().T / targets.temperature_N.double()[:, None]
    logit_NV = logit_NV.masked_fill(~admissible_of(targets, len(weight_VD)), -torch.inf)
    logprob_NV = torch.log_softmax(logit_NV, dim=1)
    summand_NV = torch.where(logprob_NV.isfinite(), logprob_NV.exp() * logprob_NV.nan_to_num(neginf=0.0), 0.0)
    return logprob_NV.gather(1, targets.token_id_N[:, None]).squeeze(1), -summand_NV.sum(dim=1)


def inputs(vocabulary: int, dtype: torch.dtype = torch.float32, tokens: int = TOKENS) -> tuple[Tensor, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    hidden_ND = torch.randn(tokens, HIDDEN, generator=generator).to(dtype).requires_grad_()
    return hidden_ND, nn.Parameter(torch.randn(vocabulary, HIDDEN, generator=generator) * 0.5)


def relative(found: Tensor, true: Tensor) -> float:
    found, true = found.detach().double(), true.detach().double()
    return float((found - true).norm() / true.norm().clamp(min=1e-9))


@pytest.mark.parametrize("block_numbers", [1, 1000, 1 << 23], ids=["a-token-a-block", "some-blocks", "one-block"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vocabulary", [64, 101])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_scores_and_gradients_are_those_of_whole_logits(
    vocabulary, masked, entropy_gradient, block_numbers, monkeypatch, record_property
):
    monkeypatch.setattr(packing, "_BLOCK_NUMBERS", block_numbers)
    targets = made_targets(vocabulary, masked=masked)
    hidden_ND, weight_VD = inputs(vocabulary)
    logprob_N, entropy_N = TokenScorer(weight_VD, entropy_gradient=entropy_gradient)(hidden_ND, targets)
    true_hidden_ND, true_weight_VD = (t.detach().double().requires_grad_() for t in (hidden_ND, weight_VD))
    true_logprob_N, true_entropy_N = by_whole_logits(true_hidden_ND, true_weight_VD, targets)
    worst = max(relative(logprob_N, true_logprob_N), relative(entropy_N, true_entropy_N))
    up_N = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(1))
    (logprob_N * up_N[0] + entropy_N * up_N[1]).sum().backward()
    heard_N = true_entropy_N if entropy_gradient else true_entropy_N.detach()
    (true_logprob_N * up_N[0] + heard_N * up_N[1]).sum().backward()
    for found, true in ((hidden_ND, true_hidden_ND), (weight_VD, true_weight_VD)):
        assert found.grad is not None
        assert true.grad is not None
        worst = max(worst, relative(found.grad, true.grad))
    record_property("token_scores_relative_error", worst)
    assert worst < 1e-5  # 32 bits against 64; a wrong term shows in the first or second digit


def test_a_token_with_nothing_beside_it_has_logprob_0_and_no_gradient():
    hidden_ND, weight_VD = inputs(40)
    targets = made_targets(40, masked=True)
    logprob_N, entropy_N = TokenScorer(weight_VD, entropy_gradient=True)(hidden_ND, targets)
    (logprob_N[0] + entropy_N[0]).backward()
    assert (float(logprob_N[0]), float(entropy_N[0])) == (0.0, 0.0)
    assert hidden_ND.grad is not None
    assert not hidden_ND.grad.any()
    assert weight_VD.grad is not None
    assert not weight_VD.grad.any()


def test_a_frozen_head_gets_no_gradient_and_nothing_of_it_is_kept():
    hidden_ND, weight_VD = inputs(101)
    weight_VD.requires_grad_(False)
    logprob_N, _ = TokenScorer(weight_VD, entropy_gradient=False)(hidden_ND, made_targets(101, masked=False))
    scored: Any = logprob_N
    kept = [t for t in scored.grad_fn.saved_tensors if t is not None]
    assert [t.shape for t in kept] == [hidden_ND.shape]
    logprob_N.sum().backward()
    assert weight_VD.grad is None


def test_tokens_that_the_policy_is_sure_of_keep_their_gradient_in_bfloat16(record_property):
    """1 − p is a small difference of two numbers near 1: it must be taken before anything is rounded."""
    vocabulary, tokens = 500, 120
    generator = torch.Generator().manual_seed(0)
    weight_VD = (torch.randn(vocabulary, 64, generator=generator) * 0.1).bfloat16()
    token_id_N = torch.randint(0, vocabulary, (tokens,), generator=generator)
    direction_ND = nn.functional.normalize(weight_VD[token_id_N].float(), dim=1)
    hidden_ND = (direction_ND * torch.linspace(8.0, 16.0, tokens)[:, None]).bfloat16().requires_grad_()
    targets = Targets(token_id_N, torch.ones(tokens), None)
    head = nn.Parameter(weight_VD, requires_grad=False)
    logprob_N, _ = TokenScorer(head, entropy_gradient=False)(hidden_ND, targets)
    logprob_N.sum().backward()
    true_ND = hidden_ND.detach().double().requires_grad_()
    true_N = by_whole_logits(true_ND, weight_VD, targets)[0]
    true_N.sum().backward()
    sure_N = true_N > -0.02
    assert int(sure_N.sum()) > 20
    assert hidden_ND.grad is not None
    assert true_ND.grad is not None
    error = relative(hidden_ND.grad[sure_N], true_ND.grad[sure_N])
    record_property("sure_tokens_bfloat16_relative_error", error)
    assert error < 0.06


def test_hidden_states_in_16_bits_and_a_trained_head_in_32_meet(record_property):
    hidden_ND, weight_VD = inputs(101, torch.bfloat16)
    targets = made_targets(101, masked=True)
    logprob_N, entropy_N = TokenScorer(weight_VD, entropy_gradient=True)(hidden_ND, targets)
    (logprob_N.sum() + 0.1 * entropy_N.sum()).backward()
    true_hidden_ND, true_weight_VD = (t.detach().double().requires_grad_() for t in (hidden_ND, weight_VD))
    true_logprob_N, true_entropy_N = by_whole_logits(true_hidden_ND, true_weight_VD, targets)
    (true_logprob_N.sum() + 0.1 * true_entropy_N.sum()).backward()
    assert logprob_N.dtype is entropy_N.dtype is torch.float32
    assert hidden_ND.grad is not None
    assert hidden_ND.grad.dtype is torch.bfloat16
    assert weight_VD.grad is not None
    assert weight_VD.grad.dtype is torch.float32
    assert true_hidden_ND.grad is not None
    assert true_weight_VD.grad is not None
    errors = relative(hidden_ND.grad, true_hidden_ND.grad), relative(weight_VD.grad, true_weight_VD.grad)
    record_property("head_bfloat16_relative_error", max(errors))
    assert max(errors) < 0.02


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any tensor has that an operation gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max(self.numbers, *(size // 4 for size in sizes), 0) if sizes else self.numbers
        return result


@pytest.mark.parametrize("masked", [False, True])
def test_no_tensor_is_ever_as_large_as_all_logits(masked, monkeypatch):
    vocabulary, tokens, block = 2000, 400, 10
    monkeypatch.setattr(packing, "_BLOCK_NUMBERS", block * vocabulary)
    hidden_ND, weight_VD = inputs(vocabulary, tokens=tokens)
    targets = made_targets(vocabulary, masked=masked, tokens=tokens)
    kept: list[Tensor] = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t),
    ):
        logprob_N, entropy_N = TokenScorer(weight_VD, entropy_gradient=True)(hidden_ND, targets)
        (logprob_N.sum() + entropy_N.sum()).backward()
    weight_numbers = vocabulary * HIDDEN
    assert tokens * vocabulary > 10 * largest.numbers, f"a tensor of {largest.numbers} numbers was made"
    assert largest.numbers <= max(weight_numbers, block * (vocabulary + 32))
    assert kept
    assert max(t.numel() for t in kept) <= weight_numbers
    with LargestTensor() as whole:  # the measure does see whole logits
        by_whole_logits(hidden_ND, weight_VD, targets)
    assert whole.numbers >= tokens * vocabulary
