"""Logprobs and entropies of tokens from hidden states, without ever holding their logits all at once.

A token's logprob depends on one hidden state only, so its derivative is one vector, found while the logits are at hand:

    logp = z_y − log Σ_v exp z_v          z = (W h) / temperature, over admissible tokens
    ∂logp/∂h = (Σ_v (1[v = y] − p_v) W_v) / temperature
    H = −Σ_v p_v log p_v
    ∂H/∂h = −(Σ_v p_v (log p_v + H) W_v) / temperature

The backward pass multiplies it by what comes from above. With a frozen head it computes no logits at all; a trained
head's own gradient computes them again, block by block.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mcprl.algorithms import inadmissible_tokens

__all__ = ["Targets", "TokenScorer"]

# Logits of a block take this many numbers: enough to keep the cores busy, little beside the model.
_BLOCK_NUMBERS = 1 << 23
# Instead of −inf: exp gives 0 just the same, and 0 times it is 0 and not NaN.
_NEVER = -1e30


class Targets(NamedTuple):
    """The tokens to score: ids, the temperatures they were sampled at, what could have been sampled instead.

    Targets(token_id_N=tensor([30, 31]), temperature_N=tensor([1.0, 1.0]), admissible_NW=None)     # None: anything
    """

    token_id_N: Tensor
    temperature_N: Tensor
    admissible_NW: Tensor | None


class TokenScorer(nn.Module):
    """The model's head, asked for single tokens. It shares its weight with the model.

    `entropy_gradient` says whether entropies are to be learned from; else they are only reported.
    """

    def __init__(self, weight_VD: nn.Parameter, *, entropy_gradient: bool) -> None:
        super().__init__()
        self.weight = weight_VD
        self.entropy_gradient = entropy_gradient

    def forward(self, hidden_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Logprob and entropy of each."""
        return cast(
            "tuple[Tensor, Tensor]",
            _ScoreTokens.apply(hidden_ND, self.weight, targets, self.entropy_gradient),  # pyright: ignore[reportUnknownMemberType]
        )


class _ScoreTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, entropy_gradient: bool) -> Any:
        size, weight_dtype = len(hidden_ND), weight_VD.dtype
        weight_VD = weight_VD.to(hidden_ND.dtype)  # a trained head is kept in 32 bits and used as the model computes
        logprob_N = hidden_ND.new_empty(size, dtype=torch.float32)
        entropy_N = torch.empty_like(logprob_N)
        wants_hidden = ctx.needs_input_grad[0]
        slope_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        entropy_slope_ND = torch.empty_like(hidden_ND) if wants_hidden and entropy_gradient else None
        for part in _blocks(size, len(weight_VD)):
            logit_NV, normaliser_N = _logits(hidden_ND, weight_VD, targets, part)
            token_id_N = targets.token_id_N[part]
            logprob_N[part] = logit_NV.gather(1, token_id_N[:, None]).squeeze(1) - normaliser_N
            share_NV = torch.exp(logit_NV - normaliser_N[:, None])
            entropy_N[part] = normaliser_N - (share_NV * logit_NV).sum(dim=1)
            scale_N1 = 1.0 / targets.temperature_N[part, None]
            if entropy_slope_ND is not None:
                # log p + H = logit − normaliser + entropy, a number for each token of the vocabulary
                surprise_NV = logit_NV.add_((entropy_N[part] - normaliser_N)[:, None]).mul_(share_NV)
                entropy_slope_ND[part] = (surprise_NV.to(weight_VD.dtype) @ weight_VD) * -scale_N1
            if slope_ND is not None:
                # 1 − p of the token itself, in 32 bits: for a token the policy is sure of, 16 bits would leave noise.
                share_NV.neg_().scatter_add_(1, token_id_N[:, None], torch.ones_like(share_NV[:, :1]))
                slope_ND[part] = (share_NV.to(weight_VD.dtype) @ weight_VD) * scale_N1
        ctx.save_for_backward(slope_ND, entropy_slope_ND, *((hidden_ND, weight_VD) if ctx.needs_input_grad[1] else ()))
        ctx.targets, ctx.weight_dtype = targets, weight_dtype
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logprob_N, grad_entropy_N = cast("tuple[Tensor, Tensor]", grads)
        slope_ND, entropy_slope_ND, *head = ctx.saved_tensors
        grad_hidden_ND = None
        if slope_ND is not None:
            grad_hidden_ND = slope_ND * grad_logprob_N[:, None]
            if entropy_slope_ND is not None:
                grad_hidden_ND += entropy_slope_ND * grad_entropy_N[:, None]
            grad_hidden_ND = grad_hidden_ND.to(slope_ND.dtype)
        grad_weight_VD = None
        if head:
            grad_entropy_N = grad_entropy_N if entropy_slope_ND is not None else torch.zeros_like(grad_entropy_N)
            grad_weight_VD = _weight_gradient(head[0], head[1], ctx.targets, grad_logprob_N, grad_entropy_N)
            grad_weight_VD = grad_weight_VD.to(ctx.weight_dtype)
        return grad_hidden_ND, grad_weight_VD, None, None


def _weight_gradient(
    hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, grad_logprob_N: Tensor, grad_entropy_N: Tensor
) -> Tensor:
    grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
    for part in _blocks(len(hidden_ND), len(weight_VD)):
        logit_NV, normaliser_N = _logits(hidden_ND, weight_VD, targets, part)
        share_NV = torch.exp(logit_NV - normaliser_N[:, None])
        entropy_N = normaliser_N - (share_NV * logit_NV).sum(dim=1)
        surprise_NV = logit_NV.add_((entropy_N - normaliser_N)[:, None])
        upstream_N, entropy_upstream_N = grad_logprob_N[part], grad_entropy_N[part]
        grad_logit_NV = share_NV * -(upstream_N[:, None] + surprise_NV * entropy_upstream_N[:, None])
        grad_logit_NV.scatter_add_(1, targets.token_id_N[part, None], upstream_N[:, None])
        grad_logit_NV /= targets.temperature_N[part, None]
        grad_weight_VD += grad_logit_NV.to(hidden_ND.dtype).T @ hidden_ND[part]
    return grad_weight_VD


def _logits(hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, part: slice) -> tuple[Tensor, Tensor]:
    """The logits of a block over what was admissible, and the logarithms of their sums of exponentials."""
    logit_NV = (hidden_ND[part] @ weight_VD.T).float()
    logit_NV /= targets.temperature_N[part, None]
    if targets.admissible_NW is not None:
        logit_NV.masked_fill_(inadmissible_tokens(targets.admissible_NW[part], logit_NV.shape[1]), _NEVER)
    return logit_NV, torch.logsumexp(logit_NV, dim=1)


def _blocks(size: int, vocabulary: int) -> list[slice]:
    rows = max(1, _BLOCK_NUMBERS // vocabulary)
    return [slice(first, first + rows) for first in range(0, size, rows)]
