"""Losses on flat selections of tokens (axis N: the learnable tokens of a minibatch).

Each loss returns one number per token. The caller multiplies them by `sequence_weights` and adds them up.
`old_logprob_N` is the denominator of the ratio: ρ = exp(logp − logp_old).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mcprl.records import Trajectory

Estimator = Literal["k1", "k2", "k3"]


def divergence(logprob_N: Tensor, reference_logprob_N: Tensor, estimator: Estimator) -> Tensor:
    """Estimate KL(policy ‖ reference) per token, for tokens that were sampled from the policy.

    With d = logp − logp_ref:

    k1   d                   unbiased. Subtract it from the reward; as a loss, its expected gradient is 0
    k2   d² / 2              biased, but as a loss its on-policy gradient is that of the divergence
    k3   exp(−d) − 1 + d     unbiased and never negative. As a loss its gradient is that of KL(reference ‖ policy)

    To estimate KL(sampler ‖ learner), call divergence(sampled_logprob_N, logprob_N, …).
    """
    difference_N = logprob_N - reference_logprob_N
    match estimator:
        case "k1":
            return difference_N
        case "k2":
            return 0.5 * difference_N.square()
        case "k3":
            # expm1 is precise even if the two policies are very close.
            return torch.expm1(-difference_N) + difference_N


def next_coefficient(coefficient: float, kl: float, *, target: float, horizon: int) -> float:
    """Return the next KL coefficient: coefficient · (1 + clip(kl / target − 1, −0.2, 0.2) / horizon).

    It rises if the measured divergence `kl` is above `target` and falls if it is below.
    """
    if math.isnan(kl):
        raise ValueError("the KL coefficient cannot be adapted to a KL of NaN")
    off_target = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + off_target / horizon)


Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def sequence_weights(token_count_S: Tensor, how: Aggregation, *, constant_tokens: int) -> Tensor:
    """Return one weight (float64) per sequence. The loss is the sum of each token's loss times its sequence's weight.

    `token_count_S` is the number of learnable tokens n_s of each of the S sequences of the minibatch.

    token_mean      1 / Σ n           all tokens have the same weight, so long sequences count for more
    sequence_mean   1 / (S' · n_s)    all S' sequences with learnable tokens have the same weight
    constant        1 / (S · constant_tokens)   a token's weight does not depend on the lengths in this minibatch

    Sequences without learnable tokens get weight 0.
    """
    count_S = token_count_S.to(torch.float64)
    match how:
        case "token_mean":
            weight_S = torch.ones_like(count_S) / count_S.sum()
        case "sequence_mean":
            weight_S = 1.0 / (count_S.count_nonzero() * count_S)
        case "constant":
            weight_S = torch.full_like(count_S, 1.0 / (len(count_S) * constant_tokens)) if len(count_S) else count_S
    return torch.where(count_S > 0, weight_S, 0.0)


def inside_gate(ratio_N: Tensor, gate: tuple[float, float]) -> Tensor:
    """Return True if low ≤ ρ ≤ high. NaN is outside."""
    low, high = gate
    return (ratio_N >= low) & (ratio_N <= high)


def importance_weights(old_logprob_N: Tensor, sampled_logprob_N: Tensor, *, cap: float) -> Tensor:
    """Return min(exp(logp_old − logp_sampled), cap), without gradient.

    The weights correct for the difference between the sampler's and the learner's probabilities. The cap bounds the
    weight of a single token and introduces a bias.
    """
    return torch.exp(old_logprob_N - sampled_logprob_N).clamp(max=cap).detach()


Masks = Literal["exact", "text", "none"]


def learnable_tokens(trajectory: Trajectory, masks: Masks) -> tuple[bool, ...]:
    """Mark the tokens of a trajectory that carry loss. All of them are tokens that the policy sampled.

    exact   without tokens at positions where the grammar allowed only one token: their logprob and gradient are 0
    text    also without tokens at positions where the grammar allowed only one string, even if it can be tokenized
            in several ways. The choice of tokenization is then not learned, so the gradient is not that of the reward
    none    all sampled tokens: the same gradient as exact, but averaged over more tokens
    """
    columns = zip(trajectory.sampled, trajectory.forced, trajectory.fixed, strict=True)
    match masks:
        case "exact":
            return tuple(sampled and not forced for sampled, forced, _ in columns)
        case "text":
            return tuple(sampled and not (forced or fixed) for sampled, forced, fixed in columns)
        case "none":
            return trajectory.sampled


def mask_shares(trajectories: Sequence[Trajectory], learnable: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return the share of sampled tokens, and the shares of forced, fixed and learnable tokens among them.

    A forced token does not count as fixed.
    """
    tokens = sum(len(t.token_ids) for t in trajectories)
    sampled = sum(sum(t.sampled) for t in trajectories)
    fixed = sum(x and not f for t in trajectories for x, f in zip(t.fixed, t.forced, strict=True))

    def share(count: int, whole: int) -> float:
        return count / whole if whole else 0.0

    return {
        "sampled_share": share(sampled, tokens),
        "forced_share": share(sum(sum(t.forced) for t in trajectories), sampled),
        "fixed_text_share": share(fixed, sampled),
        "learnable_share": share(sum(sum(mask) for mask in learnable), sampled),
    }


def inadmissible_tokens(admissible_NW: Tensor, vocab_size: int) -> Tensor:
    """Unpack the bitmask into booleans [N, V] that are True for tokens that could not have been sampled.

    `admissible_NW` packs 32 tokens into each int32, the first in the lowest bit. Bits after the last token are ignored.
    If the logits of inadmissible tokens are set to −inf, the softmax renormalizes over the other tokens. The gradient
    of inadmissible tokens is then exactly 0. In a row with one admissible token, all gradients are 0.
    """
    if admissible_NW.dtype is not torch.int32 or admissible_NW.shape[1] != -(-vocab_size // 32):
        given = f"{admissible_NW.shape[1]} words of {admissible_NW.dtype} per token"
        raise ValueError(f"grammar masks with {given} do not match a vocabulary of {vocab_size} tokens")
    # The table maps each byte to its eight inverted bits, one per byte. This takes one lookup per eight tokens and no
    # tensor larger than the result. Torch runs on little-endian machines only, so byte b holds the tokens from 8b on.
    byte_X = torch.arange(256, dtype=torch.uint8, device=admissible_NW.device)
    bit_8 = torch.arange(8, dtype=torch.uint8, device=admissible_NW.device)
    spread_X = ((byte_X[:, None] >> bit_8) & 1).eq(0).view(torch.int64).flatten()
    found = spread_X.index_select(0, admissible_NW.contiguous().view(torch.uint8).flatten().int())
    return found.view(torch.bool).view(len(admissible_NW), admissible_NW.shape[1] * 32)[:, :vocab_size]


def clipped_policy_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """PPO's loss: −min(ρ·A, clip(ρ, 1 − clip_low, 1 + clip_high)·A)."""
    return _pessimistic_loss(torch.exp(logprob_N - old_logprob_N), advantage_N, clip_low, clip_high)


def gspo_loss(
    logprob_N: Tensor,
    old_logprob_N: Tensor,
    advantage_N: Tensor,
    sequence_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Tensor:
    """GSPO's loss in its token form: PPO's loss with the ratio of the whole sequence instead of the token's ratio.

    s = exp(mean of log ρ over the tokens of the sequence),   s_t = sg(s) · π_t / sg(π_t)   (sg: no gradient)

    The value of s_t is s; its gradient is that of the token's ratio. If all tokens of a sequence have the same
    advantage, the mean of their losses has the value and gradient of GSPO's sequence objective, −min(s·A, clip(s)·A).

    `sequence_N` (int64) is the index of each token's sequence, in any order. All tokens of a sequence must be present.
    """
    sequence_count = int(sequence_N.max()) + 1 if len(sequence_N) else 0
    log_ratio_N = (logprob_N - old_logprob_N).detach()
    sum_S = log_ratio_N.new_zeros(sequence_count).index_add(0, sequence_N, log_ratio_N)
    mean_S = sum_S / sequence_N.bincount(minlength=sequence_count).clamp(min=1)
    # The difference of the logprobs is exactly 0. It is computed first, so that the mean loses no precision.
    ratio_N = torch.exp((logprob_N - logprob_N.detach()) + mean_S[sequence_N])
    return _pessimistic_loss(ratio_N, advantage_N, clip_low, clip_high)


def cispo_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """CISPO's loss: −sg(clip(ρ, 1 − clip_low, 1 + clip_high))·A·logp   (sg: no gradient).

    The clip bounds the weight of a token's gradient but never makes it 0.
    """
    weight_N = torch.exp(logprob_N.detach() - old_logprob_N).clamp(1.0 - clip_low, 1.0 + clip_high)
    return -weight_N * advantage_N * logprob_N


def value_loss(value_N: Tensor, old_value_N: Tensor, return_N: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error of a value head: ½·max((v − R)², (v_clipped − R)²).

    v_clipped = v_old + clip(v − v_old, −clip, clip). Because of the maximum, a value that has already moved more than
    `clip` towards its return gets no gradient. Without `clip`: ½·(v − R)².
    """
    error_N = (value_N - return_N).square()
    if clip is not None:
        clipped_N = old_value_N + (value_N - old_value_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (clipped_N - return_N).square())
    return 0.5 * error_N


def imitation_loss(logprob_N: Tensor) -> Tensor:
    """Behavior cloning: −logp of the tokens of a demonstration."""
    return -logprob_N


def _pessimistic_loss(ratio_N: Tensor, advantage_N: Tensor, clip_low: float, clip_high: float) -> Tensor:
    clipped_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
