"""Masks: which sampled tokens carry loss, what share of all they are, and which tokens could have been sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mcprl.records import Trajectory

__all__ = ["Masks", "inadmissible_tokens", "learnable_tokens", "mask_shares"]

Masks = Literal["exact", "text", "none"]


def learnable_tokens(trajectory: Trajectory, masks: Masks) -> tuple[bool, ...]:
    """The tokens of a trajectory that carry loss: never any that the policy did not sample.

    exact   all but those where the grammar admitted one token: their logprob is 0 and their gradient with it
    text    all but those where the grammar admitted one text, in one token or in several ways to cut it: what the
            policy chose there is not learned from, so this is not the gradient of the expected reward
    none    all that were sampled: the gradient of exact, divided by more tokens
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
    """`sampled_share` is of all tokens; the others are of those sampled. A forced token is not counted as fixed."""
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
    """True [N, V] where a token could not have been sampled.

    `admissible_NW` packs 32 tokens into each int32, the first in the lowest bit; bits behind the last token mean
    nothing. Logits set to −inf where this is true are renormalised over the rest by a softmax, get a gradient of
    exactly 0 there, and of 0 everywhere in a row with one admissible token.
    """
    if admissible_NW.dtype is not torch.int32 or admissible_NW.shape[1] != -(-vocab_size // 32):
        given = f"{admissible_NW.shape[1]} words of {admissible_NW.dtype}"
        raise ValueError(f"{given} do not fit a vocabulary of {vocab_size} tokens")
    # A table from each byte to its eight bits, turned over and spread to eight bytes: one look-up for eight tokens, and
    # nothing larger than the result. Torch runs on little-endian machines only: byte b holds the tokens from 8b on.
    byte_X = torch.arange(256, dtype=torch.uint8, device=admissible_NW.device)
    bit_8 = torch.arange(8, dtype=torch.uint8, device=admissible_NW.device)
    spread_X = ((byte_X[:, None] >> bit_8) & 1).eq(0).view(torch.int64).flatten()
    found = spread_X.index_select(0, admissible_NW.contiguous().view(torch.uint8).flatten().int())
    return found.view(torch.bool).view(len(admissible_NW), admissible_NW.shape[1] * 32)[:, :vocab_size]
