"""Aggregation: what a token weighs in the loss of a minibatch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Aggregation", "sequence_weights"]

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def sequence_weights(token_count_S: Tensor, how: Aggregation, *, constant_tokens: int | None) -> Tensor:
    """The weight (float64) that every learnable token of each sequence has; the weighted losses add up to the loss.

    `token_count_S` counts the learnable tokens n_s of the S sequences of the minibatch.

    token_mean      1 / Σ n           all tokens weigh the same, so long sequences count for more
    sequence_mean   1 / (S' · n_s)    all S' sequences with learnable tokens weigh the same
    constant        1 / (S · constant_tokens)   tokens weigh the same whatever the lengths in this minibatch are

    Sequences without learnable tokens get 0.
    """
    count_S = token_count_S.to(torch.float64)
    match how:
        case "token_mean":
            weight_S = torch.ones_like(count_S) / count_S.sum()
        case "sequence_mean":
            weight_S = 1.0 / (count_S.count_nonzero() * count_S)
        case "constant":
            if constant_tokens is None:
                raise ValueError("aggregation constant needs constant_tokens")
            weight_S = torch.full_like(count_S, 1.0 / (len(count_S) * constant_tokens)) if len(count_S) else count_S
    return torch.where(count_S > 0, weight_S, 0.0)
