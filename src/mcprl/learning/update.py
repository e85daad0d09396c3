"""One update: the minibatches of a batch, the packs of a minibatch, an optimiser step for each minibatch.

An update happens whole or not at all: where a logprob, a loss or a gradient is no number, all of it is undone. So it is
if it carries the policy beyond algorithm.kl.cap, which is measured when all its steps are made.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Protocol

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig, RunConfig
from mcprl.errors import ParityError
from mcprl.learning.algorithms import (
    divergence,
    explained_variance,
    imitation_loss,
    learnable_tokens,
    parity_metrics,
    ratio_metrics,
    sequence_weights,
)
from mcprl.learning.algorithms.advantages import floats
from mcprl.learning.models import Scores
from mcprl.learning.objective import Outcome, policy_outcome
from mcprl.learning.packing import (
    Example,
    Pack,
    Packer,
    check_alignment,
    first_non_finite,
    make_examples,
    plain_examples,
)
from mcprl.learning.process_group import ProcessGroup
from mcprl.records import Batch, Columns, Trajectory
from mcprl.seeds import derive_seed

__all__ = ["NonFiniteValues", "Optimiser", "Scorer", "UpdateMetrics", "make_update", "minibatches_of"]


# One batch may be unlucky. Several in a row are a policy that is broken, or a setting that breaks it.
@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one pack showed: detached, in the CPU's memory, so that processes can tell each other.

    `sampled_tokens` are all that the policy sampled in the pack, forced ones too. `ratios` has an entry for each token
    of each trajectory, by the trajectory's task and member.

    Seen(loss=-0.02, alignment=1.0, sampled_tokens=3, columns={"logprob": tensor([-0.3, -1.2]), …},
         parts={"policy_loss": tensor([-0.01, -0.01])}, ratios={("meet-ana", 0): tensor([0.0, 1.0, 0.97])})
    """

    loss: float
    alignment: float
    sampled_tokens: int
    columns: Mapping[str, Tensor]
    parts: Mapping[str, Tensor]
    ratios: Mapping[tuple[str, int], Tensor]

    @classmethod
    def of(
        cls,
        examples: Sequence[Example],
        scores: Scores,
        pack: Pack,
        outcome: Outcome,
        *,
        alignment: float,
        sampled_tokens: int,
    ) -> Seen:
        columns, carries_N = pack.columns, pack.columns.carries_loss_N
        seen = {
            "logprob": scores.logprob_N,
            "sampled": columns.sampled_logprob_N,
            "carries": carries_N,
            "version": columns.weights_version_N,
            "old": columns.old_logprob_N[carries_N],
            "advantage": columns.advantage_N[carries_N],
            "entropy": scores.entropy_N[carries_N],
        }
        if columns.return_N is not None:
            seen["return"] = columns.return_N[carries_N]
        return cls(
            loss=float(outcome.loss.detach()),
            alignment=alignment,
            sampled_tokens=sampled_tokens,
            columns={name: column_N.detach().cpu() for name, column_N in seen.items()},
            parts={name: column_N.detach().cpu() for name, column_N in outcome.parts.items()},
            ratios=_ratios(examples, pack, scores.logprob_N),
        )


class UpdateMetrics:
    """Grows pack by pack while an update is made, and is the same on every process.

    `version` is that of the learner's weights before the update. With a cap, `moved` is how far the whole update moved
    the policy from the old one, `distance` how far from the reference it left it, in nats per token that carries loss.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self.minibatches_without_signal = 0
        self.steps_over_cap = 0
        self._alignments: list[float] = []
        self.losses: list[float] = []
        self.steps_made = 0
        self.moved = 0.0
        self.distance = 0.0
        self.undone = False
        self._grad_norms: list[float] = []
        self._columns: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._minibatch: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._imitation: list[float] = []
        self._sampled_tokens = 0
        self._parity: dict[str, float] = {}
        self._ratios: dict[tuple[str, int], Tensor] = {}

    @property
    def looked_at_parity(self) -> bool:
        """Whether tokens were scored before any step; they may all have been stale."""
        return bool(self._parity)

    def add(self, seen: Seen) -> None:
        self._sampled_tokens += seen.sampled_tokens
        self._alignments.append(seen.alignment)
        for name, column_N in {**seen.columns, **seen.parts}.items():
            self._columns[name].append(column_N)
        self._ratios |= seen.ratios
        for name, column_N in seen.parts.items():
            self._minibatch[name].append(column_N)

    def add_imitation(self, loss: float) -> None:
        self._imitation.append(loss)

    def add_step(self, grad_norm: float | None) -> None:
        self.steps_made += 1
        if grad_norm is not None:
            self._grad_norms.append(grad_norm)

    def is_beyond(self, cap: float) -> bool:
        return max(self.moved, self.distance) > cap

    def close_minibatch(self, loss: float) -> None:
        self.losses.append(loss)
        self._minibatch.clear()

    def minibatch_mean(self, name: str) -> float:
        """The mean over the tokens of the minibatch at hand."""
        return float(torch.cat(self._minibatch[name]).mean())

    def check_parity(self, max_parity_error: float) -> None:
        """After a minibatch, until one told or a step was made: where the learner's present weights sampled a token,
        sampler and learner must agree about it. About tokens of older weights they rightly do not.

        The mean over tokens decides. Rounding leaves it small however many tokens there are, and any real fault raises
        it: all tokens a little, or a few tokens a lot. The largest difference grows with the number of tokens even if
        nothing is wrong, so it is only a verdict of health.
        """
        if self._parity.get("parity_tokens") or self.steps_made:
            return
        fresh_N = self._column("version") == self._version
        self._parity = {"parity_tokens": float(fresh_N.sum())}
        if not fresh_N.any():
            return
        logprob_N, sampled_N = self._column("logprob")[fresh_N], self._column("sampled")[fresh_N]
        self._parity |= parity_metrics(logprob_N, sampled_N)
        mean = self._parity["parity_logprob_mean_abs_error"]
        if not mean <= max_parity_error:
            raise ParityError(
                f"before any update, sampler and learner differ by {mean:.3g} nats per token on the same "
                f"{len(sampled_N)} tokens (at most {self._parity['parity_logprob_max_abs_error']:.3g}); "
                f"learner.max_parity_error is {max_parity_error:g}",
                fix="use the same model and dtype in both, or raise learner.max_parity_error for bfloat16",
            )

    def ratios_of(self, trajectories: Sequence[Trajectory]) -> Columns:
        """The ratio of each token when it was last looked at; 0 where it was not."""
        nothing_seen = {(t.task_id, t.member): torch.zeros(len(t.token_ids)) for t in trajectories}
        return tuple(tuple(floats(ratio_T)) for ratio_T in (nothing_seen | self._ratios).values())

    def metrics(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        """Of an update that scored at least one token."""
        carries_N = self._column("carries")
        logprob_N, sampled_N = self._column("logprob"), self._column("sampled")
        moved_N = divergence(sampled_N, logprob_N, "k3")
        ratios = ratio_metrics(
            logprob_N[carries_N],
            self._column("old"),
            self._column("advantage"),
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
        )
        return {
            "loss": fmean(self.losses) if self.losses else 0.0,
            "optimiser_steps": 0.0 if self.undone else float(self.steps_made),
            "optimiser_steps_over_cap": float(self.steps_over_cap),
            "minibatches_without_signal": float(self.minibatches_without_signal),
            "alignment": min(self._alignments),
            "entropy": float(self._column("entropy").mean()),
            **self._parity,
            **self._norms(),
            **ratios,
            "kl": float(moved_N[carries_N].mean()),
            # A forced token has probability 1 under any policy: it adds nothing but itself to the number of tokens.
            "kl_unmasked": float(moved_N.sum()) / self._sampled_tokens,
            **self._parts(algorithm),
        }

    def _norms(self) -> dict[str, float]:
        """None where steps were made and no engine told their norms."""
        if self.steps_made and not self._grad_norms:
            return {}
        return {"grad_norm": fmean(self._grad_norms) if self._grad_norms else 0.0}

    def _parts(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        """Metrics of the parts of the objective that are in use."""
        found: dict[str, float] = {}
        if algorithm.kl.cap is not None:
            found |= {"kl_update": self.moved, "update_undone": float(self.undone)}
        minibatches = max(1, len(self.losses))
        for name in ("policy_loss", "kl_loss", "value_loss"):
            if name in self._columns:
                found[name] = float(self._column(name).sum()) / minibatches  # each token's share, weighted already
        if "kl_reference" in self._columns:
            found["kl_reference"] = float(self._column("kl_reference").mean())
        found["gated_fraction"] = float(self._column("gated").mean()) if "gated" in self._columns else 0.0
        if "importance" in self._columns:
            weight_N = self._column("importance")
            found["importance_mean"] = float(weight_N.mean())
            found["importance_cut_fraction"] = float((weight_N >= algorithm.max_importance).float().mean())
        if "value" in self._columns:
            found["explained_variance"] = explained_variance(self._column("value"), self._column("return"))
        if self._imitation:
            found["imitation_loss"] = fmean(self._imitation)
        return found

    def _column(self, name: str) -> Tensor:
        return torch.cat(self._columns[name])


def _ratios(examples: Sequence[Example], pack: Pack, logprob_N: Tensor) -> dict[tuple[str, int], Tensor]:
    columns = pack.columns
    change_N = logprob_N.detach() - columns.old_logprob_N
    ratio_N = torch.where(columns.carries_loss_N, change_N.exp(), 0.0)
    return {
        (example.trajectory.task_id, example.trajectory.member): example.on_tokens(ratio_N[pack.sequence_N == place])
        for place, example in enumerate(examples)
    }


class NonFiniteValues(Exception):
    """Something is no number; the message says what, and in which episodes. The weights are those of before."""


class Scorer(Protocol):
    """A policy: it scores the tokens of a pack, and gradients flow back through the scores."""

    def __call__(self, pack: Pack) -> Scores: ...


class Optimiser(Protocol):
    """Moves a policy by the gradients that `backward` left."""

    @property
    def learning_rate(self) -> float:
        """The one in force for the next step."""
        ...

    def forget_gradients(self) -> None: ...

    def gradients_are_finite(self) -> bool:
        """Whether every number of every gradient is one."""
        ...

    def step(self) -> float | None:
        """One step; the norm that the gradients had, None where that is not known. Of no number, no step is made."""
        ...

    def make_undo(self) -> Callable[[], None]:
        """What to call to make all steps from now on not to have been."""
        ...

    def halve_rate(self) -> None:
        """Make all steps from now on with half the learning rate, whatever the schedule says."""
        ...


# An update that alone makes so large a part of the distance that the cap allows is too large.
_JUMP = 0.5


def make_update(
    batch: Batch,
    config: RunConfig,
    policy: Scorer,
    optimiser: Optimiser,
    packer: Packer,
    processes: ProcessGroup,
    *,
    version: int,
) -> UpdateMetrics:
    """Move the policy, whose weights are of this version, by a batch. What was seen on the way is in the tally."""
    update = _OngoingUpdate(batch, config, policy, optimiser, packer, processes, UpdateMetrics(version))
    undo = optimiser.make_undo()
    cap = config.algorithm.kl.cap
    try:
        update.run()
        if cap is not None and update.tally.steps_made:
            update.measure_move()
    except NonFiniteValues:
        undo()
        raise
    if cap is not None and update.tally.is_beyond(cap):
        undo()
        update.tally.undone = True
        if update.tally.moved > _JUMP * cap:
            optimiser.halve_rate()
    return update.tally


class _OngoingUpdate:
    def __init__(
        self,
        batch: Batch,
        config: RunConfig,
        policy: Scorer,
        optimiser: Optimiser,
        packer: Packer,
        processes: ProcessGroup,
        tally: UpdateMetrics,
    ) -> None:
        self._batch = batch
        self._config = config
        self._policy = policy
        self._optimiser = optimiser
        self._packer = packer
        self._processes = processes
        self._examples = make_examples(batch)
        masks = [learnable_tokens(t, config.algorithm.masks) for t in batch.demonstrations]
        self._demonstrations = plain_examples(batch.demonstrations, masks) if batch.demonstration_weight > 0 else []
        self.tally = tally

    def run(self) -> None:
        spoilt = first_non_finite(self._examples)
        if spoilt is not None:
            raise NonFiniteValues(spoilt)
        minibatches = list(minibatches_of(self._batch, self._config))
        count = len(minibatches) // self._config.algorithm.epochs
        for number, minibatch in enumerate(minibatches):
            self._learn([self._examples[i] for i in minibatch], self._demonstrations[number % count :: count])

    @torch.no_grad()
    def measure_move(self) -> None:
        """Score the batch once more, after all steps: how far the policy is now from the old one and the reference."""
        tokens, moved, distance = 0, 0.0, 0.0
        for chosen in self._processes.own(self._packer.divide(self._examples)):
            some = [self._examples[i] for i in chosen or (0,)]
            pack = self._packer.pack(some)
            logprob_N = self._policy(pack).logprob_N
            self._refuse_spoilt(logprob_N, logprob_N.sum(), pack, some)
            columns = pack.columns.chosen(pack.columns.carries_loss_N)
            logprob_N = logprob_N[pack.columns.carries_loss_N]
            if chosen:
                tokens += len(logprob_N)
                moved += float(divergence(columns.old_logprob_N, logprob_N, "k3").double().sum())
            if chosen and columns.reference_logprob_N is not None:
                estimator = self._config.algorithm.kl.estimator
                distance += float(divergence(logprob_N, columns.reference_logprob_N, estimator).double().sum())
        tokens, moved, distance = map(sum, zip(*self._processes.gather((tokens, moved, distance)), strict=True))
        if tokens:  # else only demonstrations moved the policy
            self.tally.moved, self.tally.distance = moved / tokens, distance / tokens

    def _learn(self, examples: Sequence[Example], demonstrations: Sequence[Example]) -> None:
        """One optimiser step. Where nothing in the minibatch moves the weights, there is no step to make."""
        learnable = any(example.learnable_tokens for example in examples)
        moves = bool(demonstrations) or (learnable and self._has_signal(examples))
        if not moves:
            self.tally.minibatches_without_signal += 1
            if self.tally.looked_at_parity or not learnable:
                return  # else the first tokens are scored all the same, for parity
        self._optimiser.forget_gradients()
        loss = 0.0
        if learnable:
            loss = self._reinforce(examples, learn=moves)
            self.tally.check_parity(self._config.learner.max_parity_error)
        if moves and learnable and self._is_over_cap():
            self.tally.steps_over_cap += 1
        elif moves:
            if demonstrations:
                loss += self._imitate(demonstrations)
            self._step(examples)
        self.tally.close_minibatch(loss)

    def _is_over_cap(self) -> bool:
        cap = self._config.algorithm.kl.cap
        return cap is not None and self.tally.minibatch_mean("kl_reference") > cap

    def _has_signal(self, examples: Sequence[Example]) -> bool:
        algorithm = self._config.algorithm
        pulled = self._batch.kl_coefficient > 0 and not algorithm.kl.in_reward
        if pulled or algorithm.entropy > 0 or algorithm.has_critic:
            return True
        return any(bool(example.columns.advantage_N.any()) for example in examples)

    def _step(self, examples: Sequence[Example]) -> None:
        norm = self._optimiser.step()
        if norm is not None and not math.isfinite(norm):
            raise NonFiniteValues(f"the norm of the gradients is not a finite number after {_named(examples)}")
        self.tally.add_step(norm)

    def _reinforce(self, examples: Sequence[Example], *, learn: bool) -> float:
        """Score a minibatch pack by pack; with `learn`, add up its gradients. Its loss."""
        algorithm = self._config.algorithm
        counts_S = torch.tensor([example.learnable_tokens for example in examples])
        longest = self._config.model.context_tokens
        weight_S = sequence_weights(counts_S, algorithm.aggregation, constant_tokens=longest).float()
        seen: list[Seen] = []
        for chosen in self._processes.own(self._packer.divide(examples)):
            some = [examples[i] for i in chosen or (0,)]
            pack = self._packer.pack(some)
            weight_N = weight_S[chosen or [0]].to(pack.sequence_N.device)[pack.sequence_N] * bool(chosen)
            with torch.set_grad_enabled(learn):
                scores = self._policy(pack)
                outcome = policy_outcome(scores, pack, weight_N, algorithm, self._batch.kl_coefficient)
            self._refuse_spoilt(scores.logprob_N, outcome.loss, pack, some)
            if learn:
                self._backward(outcome.loss, some)
            if chosen:
                sampled = sum(sum(example.trajectory.sampled) for example in some)
                alignment = check_alignment(pack, some)
                seen.append(Seen.of(some, scores, pack, outcome, alignment=alignment, sampled_tokens=sampled))
        everyones = [own for part in self._processes.gather(seen) for own in part]
        for own in everyones:
            self.tally.add(own)
        return sum(own.loss for own in everyones)

    def _imitate(self, demonstrations: Sequence[Example]) -> float:
        """Add the gradients of the imitation loss, a mean over its tokens, times its weight. That loss."""
        tokens = sum(len(example.position_N) for example in demonstrations)
        loss = 0.0
        for chosen in self._processes.own(self._packer.divide(demonstrations)):
            some = [demonstrations[i] for i in chosen or (0,)]
            pack = self._packer.pack(some)
            logprob_N = self._policy(pack).logprob_N
            own = imitation_loss(logprob_N).sum() / tokens * self._batch.demonstration_weight * bool(chosen)
            self._refuse_spoilt(logprob_N, own, pack, some)
            self._backward(own, some)
            loss += float(own.detach())
        loss = sum(self._processes.gather(loss))
        self.tally.add_imitation(loss / self._batch.demonstration_weight)
        return loss

    def _backward(self, loss: Tensor, examples: Sequence[Example]) -> None:
        self._processes.backward(loss)
        if not self._processes.everywhere(self._optimiser.gradients_are_finite()):
            names = "; ".join(self._processes.gather(_named(examples)))
            raise NonFiniteValues(f"a gradient is not a finite number after {names}")

    def _refuse_spoilt(self, logprob_N: Tensor, loss: Tensor, pack: Pack, examples: Sequence[Example]) -> None:
        finite_N = logprob_N.detach().isfinite()
        fine = bool(finite_N.all()) and bool(loss.detach().isfinite())
        if self._processes.everywhere(fine):
            return
        at_fault = [example for i, example in enumerate(examples) if not finite_N[pack.sequence_N == i].all()]
        what = "a logprob" if at_fault else "the loss"
        own = None if fine else f"{what} is not a finite number in {_named(at_fault or examples)}"
        raise NonFiniteValues("; ".join(found for found in self._processes.gather(own) if found is not None))


def _named(examples: Sequence[Example]) -> str:
    return "; ".join(example.name for example in examples)


def minibatches_of(batch: Batch, config: RunConfig) -> Iterator[list[int]]:
    """Indices of trajectories, dealt evenly, whole groups together where they fit; the seed decides the order."""
    members: list[list[int]] = []
    for group in batch.groups:
        first = members[-1][-1] + 1 if members else 0
        members.append(list(range(first, first + len(group.trajectories))))
    # A batch whose dead groups were left out may have fewer trajectories than there should be minibatches.
    count = min(config.algorithm.minibatches, len(batch.trajectories))
    for epoch in range(config.algorithm.epochs):
        groups = list(members)
        random.Random(derive_seed(config.seed, "minibatches", batch.step, epoch)).shuffle(groups)
        order = [i for group in groups for i in group]
        bounds = [len(order) * number // count for number in range(count + 1)]
        yield from (order[low:high] for low, high in pairwise(bounds))
