"""Which tokens carry loss and which could have been sampled, against loops over single tokens and single bits."""
# R7

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import make_episode

from mcprl.learning.algorithms import inadmissible_tokens, learnable_tokens, mask_shares

kinds = st.text(alphabet="csfx", min_size=1, max_size=12)


@given(kinds)
def test_each_way_to_mask_leaves_out_what_it_names_and_nothing_else(kinds):
    made = make_episode(kinds)
    assert learnable_tokens(made, "exact") == tuple(kind in "sx" for kind in kinds)
    assert learnable_tokens(made, "text") == tuple(kind == "s" for kind in kinds)
    assert learnable_tokens(made, "none") == tuple(kind in "sfx" for kind in kinds)


@given(st.lists(kinds, min_size=1, max_size=4).filter(lambda made: any(set(k) - {"c"} for k in made)))
def test_shares_are_counted_over_all_trajectories_together(made):
    trajectories = [make_episode(k) for k in made]
    letters = "".join(made)
    sampled = len(letters) - letters.count("c")
    shares = mask_shares(trajectories, [learnable_tokens(t, "exact") for t in trajectories])
    assert shares == pytest.approx(
        {
            "sampled_share": sampled / len(letters),
            "forced_share": letters.count("f") / sampled,
            "fixed_text_share": letters.count("x") / sampled,
            "learnable_share": (letters.count("s") + letters.count("x")) / sampled,
        }
    )
    assert shares["learnable_share"] == pytest.approx(1.0 - shares["forced_share"])


def test_where_nothing_was_sampled_every_share_is_zero():
    assert set(mask_shares([make_episode("ccc")], [(False,) * 3]).values()) == {0.0}


@st.composite
def admissible_sets(draw: st.DrawFn) -> tuple[int, list[set[int]]]:
    """A size of the vocabulary, and the admissible tokens of some rows, at least one in each."""
    size = draw(st.integers(1, 100))
    some = st.sets(st.integers(0, size - 1), min_size=1)
    return size, draw(st.lists(some, min_size=1, max_size=4))


def packed(size: int, sets: list[set[int]]) -> torch.Tensor:
    rows = []
    for tokens in sets:
        words = [
            sum(1 << bit for bit in range(32) if 32 * word + bit in tokens) for word in range(math.ceil(size / 32))
        ]
        rows.append([word - (1 << 32) if word >= 1 << 31 else word for word in words])
    return torch.tensor(rows, dtype=torch.int32)


@given(admissible_sets(), st.integers(0, 2**31))
def test_the_softmax_is_that_of_the_admissible_logits_alone_and_the_others_get_no_gradient(made, seed):
    size, sets = made
    logit_NV = torch.randn(len(sets), size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logit_NV.requires_grad_()
    outside_NV = inadmissible_tokens(packed(size, sets), size)
    logprob_NV = torch.log_softmax(logit_NV.masked_fill(outside_NV, -math.inf), dim=1)
    for n, tokens in enumerate(sets):
        allowed, outside = sorted(tokens), sorted(set(range(size)) - tokens)
        torch.testing.assert_close(logprob_NV[n, allowed], torch.log_softmax(logit_NV[n, allowed], dim=0))
        assert logprob_NV[n, outside].eq(-math.inf).all()
        (gradient_NV,) = torch.autograd.grad(logprob_NV[n, allowed[0]], logit_NV, retain_graph=True)
        assert gradient_NV.isfinite().all()
        assert gradient_NV[n, outside].eq(0.0).all()
        assert len(allowed) > 1 or gradient_NV.eq(0.0).all()


@given(admissible_sets())
def test_bits_behind_the_last_token_mean_nothing(made):
    size, sets = made
    bits_NW = packed(size, sets)
    behind_NW = packed(bits_NW.shape[1] * 32, [set(range(size, bits_NW.shape[1] * 32))] * len(sets))
    found_NV = inadmissible_tokens(bits_NW | behind_NW, size)
    assert found_NV.tolist() == [[token not in tokens for token in range(size)] for tokens in sets]


@pytest.mark.parametrize(("words", "dtype"), [(1, torch.int32), (3, torch.int32), (2, torch.int64)])
def test_bits_of_another_vocabulary_or_another_width_are_refused(words, dtype):
    with pytest.raises(ValueError, match="do not match a vocabulary of 40 tokens"):
        inadmissible_tokens(torch.full((2, words), -1, dtype=dtype), 40)


def test_no_rows_are_no_rows():
    assert inadmissible_tokens(torch.zeros(0, 2, dtype=torch.int32), 40).shape == (0, 40)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_inadmissible_on_a_gpu_is_what_is_inadmissible_on_the_cpu():
    bits_NW = torch.randint(-(2**31), 2**31, (7, 3), dtype=torch.int32)
    assert torch.equal(inadmissible_tokens(bits_NW.cuda(), 90).cpu(), inadmissible_tokens(bits_NW, 90))
