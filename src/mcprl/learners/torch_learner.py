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
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from mcprl.algorithms import clipped_policy_loss, mask_shares
from mcprl.config import RunConfig
from mcprl.errors import BadValueError, NonFiniteError
from mcprl.learners.policy import load_policy, save_adapter, token_logprobs
from mcprl.learners.replay import Replayer
from mcprl.learners.rows import Rows, check_alignment, make_rows
from mcprl.learners.tally import Tally
from mcprl.records import Batch, Trajectory, Update, Weights
from mcprl.seeds import derive_seed

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars

__all__ = ["TorchLearner"]


class TorchLearner:
    """Trains a LoRA adapter with AdamW, on the GPU where there is one.

    `grammars` replays the grammars that trajectories were sampled under; None is for runs that hold nothing to one.
    """

    def __init__(self, config: RunConfig, *, adapters: Path, grammars: Grammars | None) -> None:
        self._config = config
        self._adapters = adapters
        self._replayer = Replayer(grammars)
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

    async def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        """The policy's logprob of every sampled token, forced ones too, and 0 elsewhere; one column a trajectory.

        Each token is scored as an update scores it: at the temperature and under the grammar it was sampled with.
        """
        return await asyncio.to_thread(self._score, trajectories)

    def _update(self, batch: Batch) -> Update:
        started = time.monotonic()
        replayed_s = self._replayer.spent_s
        if not any(any(mask) for mask in batch.learnable):
            raise BadValueError(
                f"step {batch.step}: the grammar left the policy no choice that may carry loss, so there is nothing to "
                f"learn; algorithm.masks is {self._config.algorithm.masks}",
                fix="set sampling.constrain to calls or off, or algorithm.masks to exact",
            )
        tally = Tally()
        for minibatch in self._minibatches(batch):
            self._learn(batch, minibatch, tally)
        self._version += 1
        weights = Weights(
            version=self._version, adapter=save_adapter(self.policy, self._adapters / f"v{self._version}")
        )
        metrics = {
            **tally.metrics(self._config.algorithm),
            **mask_shares(batch.trajectories, batch.learnable),
            "replay_s": self._replayer.spent_s - replayed_s,
            "update_s": time.monotonic() - started,
        }
        return Update(step=batch.step, weights=weights, metrics=metrics)

    def _minibatches(self, batch: Batch) -> Iterator[list[int]]:
        """Indices of trajectories, dealt evenly, in an order that the seed decides."""
        count = self._config.algorithm.minibatches
        for epoch in range(self._config.algorithm.epochs):
            order = list(range(len(batch.trajectories)))
            random.Random(derive_seed(self._config.seed, "minibatches", batch.step, epoch)).shuffle(order)
            yield from (sorted(order[first::count]) for first in range(count))

    def _learn(self, batch: Batch, minibatch: Sequence[int], tally: Tally) -> None:
        """One optimiser step. Where nothing in the minibatch is better or worse, there is no step to make."""
        tokens = sum(sum(batch.learnable[i]) for i in minibatch)
        has_signal = any(any(batch.advantages[i]) for i in minibatch)
        if not has_signal:
            tally.minibatches_without_signal += 1
            if tally.knows_parity or not tokens:  # the first tokens are scored all the same, for parity
                return
        self._optimiser.zero_grad(set_to_none=True)
        loss = 0.0
        for chosen in self._microbatches(batch.trajectories, minibatch):
            rows, alignment = self._pack(
                [batch.trajectories[i] for i in chosen],
                [batch.learnable[i] for i in chosen],
                [batch.advantages[i] for i in chosen],
            )
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
            tally.alignments.append(alignment)
            tally.add_scores(logprob_N.detach(), rows)
        tally.close_minibatch(self._config.learner.max_parity_error)
        if has_signal:
            self._step(loss, tally)

    def _step(self, loss: float, tally: Tally) -> None:
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.learner.max_grad_norm))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise NonFiniteError(
                f"the loss is {loss} and the gradient norm {norm}; this optimiser step was not made",
                fix="lower learner.learning_rate, or use model.dtype float32",
            )
        self._optimiser.step()  # pyright: ignore[reportUnknownMemberType]
        tally.add_step(loss, norm)

    @torch.no_grad()
    def _score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
        columns: dict[int, tuple[float, ...]] = {}
        for chosen in self._microbatches(trajectories, range(len(trajectories))):
            some = [trajectories[i] for i in chosen]
            rows, _ = self._pack(some, [t.sampled for t in some], [[0.0] * len(t.token_ids) for t in some])
            logprob_BT = torch.zeros(rows.token_id_BT.shape, device=self._device)
            logprob_BT[rows.row_N, rows.position_N] = token_logprobs(self.policy, rows)
            for i, logprob_T in zip(chosen, logprob_BT, strict=True):
                columns[i] = tuple(cast("list[float]", logprob_T[: len(trajectories[i].token_ids)].tolist()))  # pyright: ignore[reportUnknownMemberType]
        return [columns[i] for i in range(len(trajectories))]

    def _microbatches(self, trajectories: Sequence[Trajectory], chosen: Sequence[int]) -> Iterator[list[int]]:
        """Indices of similar length together, so that little is padded."""
        by_length = sorted(chosen, key=lambda i: len(trajectories[i].token_ids))
        size = self._config.learner.microbatch
        yield from (by_length[first : first + size] for first in range(0, len(by_length), size))

    def _pack(
        self,
        trajectories: Sequence[Trajectory],
        learnable: Sequence[Sequence[bool]],
        advantages: Sequence[Sequence[float]],
    ) -> tuple[Rows, float]:
        """Rows, with what the replay of the grammars admits, and the alignment of their tokens."""
        admissible_NW = self._replayer.admissible(trajectories, learnable)
        rows = make_rows(trajectories, learnable, advantages, admissible_NW, self._device)
        return rows, check_alignment(rows, trajectories, learnable)
