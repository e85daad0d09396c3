"""The torch learner: batches in, a better adapter out.

One update makes `epochs × minibatches` optimiser steps. Each minibatch is a set of whole trajectories; its loss is the
mean over its learnable tokens, summed up in microbatches that fit in memory.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from mcprl.algorithms import clipped_policy_loss, parity_metrics, ratio_metrics
from mcprl.config import RunConfig
from mcprl.errors import NonFiniteError, ParityError
from mcprl.learners.policy import load_policy, save_adapter, token_logprobs
from mcprl.learners.rows import Rows, check_alignment, make_rows
from mcprl.records import Batch, Update, Weights
from mcprl.seeds import derive_seed

__all__ = ["TorchLearner"]


class TorchLearner:
    """Trains a LoRA adapter with AdamW, on the GPU where there is one."""

    def __init__(self, config: RunConfig, *, adapters: Path) -> None:
        self._config = config
        self._adapters = adapters
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._version = 0
        self.policy: Any = load_policy(
            config.model, config.learner, seed=derive_seed(config.seed, "adapter"), device=self._device
        )
        self._parameters: list[Tensor] = [p for p in self.policy.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(
            self._parameters, lr=config.learner.learning_rate, weight_decay=config.learner.weight_decay
        )

    async def update(self, batch: Batch) -> Update:
        """Learn from a batch and write the next version of the adapter."""
        return await asyncio.to_thread(self._update, batch)

    def _update(self, batch: Batch) -> Update:
        started = time.monotonic()
        seen = _Seen()
        for minibatch in self._minibatches(batch):
            self._learn(batch, minibatch, seen)
        self._version += 1
        weights = Weights(
            version=self._version, adapter=save_adapter(self.policy, self._adapters / f"v{self._version}")
        )
        metrics = seen.metrics(self._config) | {"update_s": time.monotonic() - started}
        return Update(step=batch.step, weights=weights, metrics=metrics)

    def _minibatches(self, batch: Batch) -> Iterator[list[int]]:
        """Indices of trajectories, dealt evenly, in an order that the seed decides."""
        count = self._config.algorithm.minibatches
        for epoch in range(self._config.algorithm.epochs):
            order = list(range(len(batch.trajectories)))
            random.Random(derive_seed(self._config.seed, "minibatches", batch.step, epoch)).shuffle(order)
            yield from (sorted(order[first::count]) for first in range(count))

    def _learn(self, batch: Batch, minibatch: Sequence[int], seen: _Seen) -> None:
        """One optimiser step. Where nothing in the minibatch is better or worse, there is no step to make."""
        has_signal = any(any(batch.advantages[i]) for i in minibatch)
        if not has_signal:
            seen.minibatches_without_signal += 1
            if seen.logprobs:  # the first minibatch is scored all the same, for parity
                return
        tokens = sum(sum(batch.trajectories[i].learnable) for i in minibatch)
        self._optimiser.zero_grad(set_to_none=True)
        loss = 0.0
        for rows in self._microbatches(batch, minibatch, seen):
            with torch.set_grad_enabled(has_signal):
                logprob_N = token_logprobs(self.policy, rows)
            loss_N = clipped_policy_loss(
                logprob_N,
                rows.sampled_logprob_N,
                rows.advantage_N,
                clip_low=self._config.algorithm.clip_low,
                clip_high=self._config.algorithm.clip_high,
            )
            share_of_loss = loss_N.sum() / tokens
            if has_signal:
                share_of_loss.backward()  # pyright: ignore[reportUnknownMemberType]
            loss += float(share_of_loss.detach())
            seen.add(logprob_N.detach(), rows)
        seen.close_minibatch(self._config.learner.max_parity_error)
        if has_signal:
            self._step(loss, seen)

    def _step(self, loss: float, seen: _Seen) -> None:
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.learner.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise NonFiniteError(
                f"the loss is {loss} and the gradient norm {norm}; this optimiser step was not made",
                fix="lower learner.learning_rate, or use model.dtype float32",
            )
        self._optimiser.step()  # pyright: ignore[reportUnknownMemberType]
        seen.optimiser_steps += 1
        seen.losses.append(loss)
        seen.grad_norms.append(norm)

    def _microbatches(self, batch: Batch, minibatch: Sequence[int], seen: _Seen) -> Iterator[Rows]:
        """Rows of similar length together, so that little is padded."""
        by_length = sorted(minibatch, key=lambda i: len(batch.trajectories[i].token_ids))
        size = self._config.learner.microbatch
        for first in range(0, len(by_length), size):
            chosen = by_length[first : first + size]
            trajectories = [batch.trajectories[i] for i in chosen]
            rows = make_rows(trajectories, [batch.advantages[i] for i in chosen], self._device)
            seen.alignments.append(check_alignment(rows, trajectories))
            seen.tokens += sum(len(t.token_ids) for t in trajectories)
            yield rows


class _Seen:
    """What an update has seen so far, for its metrics."""

    def __init__(self) -> None:
        self.optimiser_steps = 0
        self.minibatches_without_signal = 0
        self.tokens = 0
        self.alignments: list[float] = []
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self.logprobs: list[Tensor] = []
        self._sampled: list[Tensor] = []
        self._advantages: list[Tensor] = []
        self._parity: dict[str, float] | None = None

    def add(self, logprob_N: Tensor, rows: Rows) -> None:
        self.logprobs.append(logprob_N)
        self._sampled.append(rows.sampled_logprob_N)
        self._advantages.append(rows.advantage_N)

    def close_minibatch(self, max_parity_error: float) -> None:
        """After the first minibatch, before any step: sampler and learner hold the same weights and must agree."""
        if self._parity is not None:
            return
        self._parity = parity_metrics(torch.cat(self.logprobs), torch.cat(self._sampled))
        worst = self._parity["parity_logprob_max_abs_error"]
        if not worst <= max_parity_error:
            raise ParityError(
                f"before any update, sampler and learner differ by up to {worst:.3g} nats on the same tokens, "
                f"learner.max_parity_error is {max_parity_error:g}",
                fix="use the same model and dtype in both, or raise learner.max_parity_error for bfloat16",
            )

    def metrics(self, config: RunConfig) -> dict[str, float]:
        logprob_N, sampled_N, advantage_N = (
            torch.cat(parts) for parts in (self.logprobs, self._sampled, self._advantages)
        )
        ratios = ratio_metrics(
            logprob_N,
            sampled_N,
            advantage_N,
            clip_low=config.algorithm.clip_low,
            clip_high=config.algorithm.clip_high,
        )
        return {
            "loss": fmean(self.losses) if self.losses else 0.0,
            "grad_norm": fmean(self.grad_norms) if self.grad_norms else 0.0,
            "optimiser_steps": float(self.optimiser_steps),
            "minibatches_without_signal": float(self.minibatches_without_signal),
            "alignment": min(self.alignments),
            "learnable_tokens": float(len(logprob_N)),
            "learnable_share": len(logprob_N) / self.tokens,
            **(self._parity or {}),
            **ratios,
        }
