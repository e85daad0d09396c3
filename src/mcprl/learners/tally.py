"""What an update has seen, and the metrics that are made of it."""

from __future__ import annotations

from statistics import fmean

import torch
from torch import Tensor

from mcprl.algorithms import parity_metrics, ratio_metrics
from mcprl.config import AlgorithmConfig
from mcprl.errors import ParityError
from mcprl.learners.rows import Rows

__all__ = ["Tally"]


class Tally:
    """Grows minibatch by minibatch while an update is made."""

    def __init__(self) -> None:
        self.minibatches_without_signal = 0
        self.alignments: list[float] = []
        self._losses: list[float] = []
        self._grad_norms: list[float] = []
        self._logprobs: list[Tensor] = []
        self._sampled_logprobs: list[Tensor] = []
        self._advantages: list[Tensor] = []
        self._parity: dict[str, float] | None = None

    @property
    def knows_parity(self) -> bool:
        return self._parity is not None

    def add_scores(self, logprob_N: Tensor, rows: Rows) -> None:
        self._logprobs.append(logprob_N)
        self._sampled_logprobs.append(rows.sampled_logprob_N)
        self._advantages.append(rows.advantage_N)

    def add_step(self, loss: float, grad_norm: float) -> None:
        self._losses.append(loss)
        self._grad_norms.append(grad_norm)

    def close_minibatch(self, max_parity_error: float) -> None:
        """After the first minibatch, before any step: sampler and learner hold the same weights and must agree."""
        if self._parity is not None:
            return
        self._parity = parity_metrics(torch.cat(self._logprobs), torch.cat(self._sampled_logprobs))
        worst = self._parity["parity_logprob_max_abs_error"]
        if not worst <= max_parity_error:
            raise ParityError(
                f"before any update, sampler and learner differ by up to {worst:.3g} nats on the same tokens, "
                f"learner.max_parity_error is {max_parity_error:g}",
                fix="use the same model and dtype in both, or raise learner.max_parity_error for bfloat16",
            )

    def metrics(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        logprob_N, sampled_N, advantage_N = (
            torch.cat(parts) for parts in (self._logprobs, self._sampled_logprobs, self._advantages)
        )
        ratios = ratio_metrics(
            logprob_N, sampled_N, advantage_N, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high
        )
        return {
            "loss": fmean(self._losses) if self._losses else 0.0,
            "grad_norm": fmean(self._grad_norms) if self._grad_norms else 0.0,
            "optimiser_steps": float(len(self._losses)),
            "minibatches_without_signal": float(self.minibatches_without_signal),
            "alignment": min(self.alignments),
            "learnable_tokens": float(len(logprob_N)),
            **(self._parity or {}),
            **ratios,
        }
