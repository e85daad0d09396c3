"""One update: splits a batch into minibatches and those into packs, and makes one optimizer step per minibatch.

An update is made completely or not at all. It is undone if a logprob, a loss or a gradient is not finite, or if the
policy has moved further than algorithm.kl.cap after the last step.
"""

from __future__ import annotations

import logging
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from mcprl.config import RunConfig
from mcprl.errors import NonFiniteError
from mcprl.learning.algorithms import (
    divergence,
    imitation_loss,
    learnable_tokens,
    mask_shares,
    sequence_weights,
    staleness_metrics,
)
from mcprl.learning.algorithms.advantages import floats
from mcprl.learning.algorithms.batches import require_sound_advantages
from mcprl.learning.algorithms.objective import Scores, policy_outcome, require_sound_loss
from mcprl.learning.learner import in_torch_thread
from mcprl.learning.metrics import Seen, UpdateMetrics
from mcprl.learning.packing import Example, Pack, Packer, first_non_finite, make_examples, plain_examples, scored_tokens
from mcprl.learning.process_group import ProcessGroup
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights
from mcprl.seeds import derive_seed


class Scorer(Protocol):
    """A policy that scores the tokens of a pack. Gradients flow back through the scores."""

    def __call__(self, pack: Pack) -> Scores: ...


class Optimiser(Protocol):
    """Makes optimizer steps with the gradients that `backward` accumulated."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        ...

    def forget_gradients(self) -> None: ...

    def gradients_are_finite(self) -> Tensor:
        """Return one boolean, on the device of the gradients."""
        ...

    def step(self) -> float | None:
        """Make one step, unless the gradients are not finite. Returns the gradient norm, or None if it is not known."""
        ...

    def make_undo(self) -> Callable[[], None]:
        """Return a function that undoes all later steps."""
        ...

    def halve_rate(self) -> None:
        """Halve the learning rate of all further steps, on top of the schedule."""
        ...


class FrozenPolicy(Protocol):
    """The reference policy, as used by a learner."""

    def in_place(self) -> AbstractContextManager[Scorer]:
        """Return the reference as a policy that computes scores."""
        ...

    def follow(self) -> dict[str, float]:
        """Move the reference after an update, as configured. Returns metrics."""
        ...

    def become_policy(self) -> int:
        """Copy every tensor of the policy to the reference. Return how many tensors then differ, which must be 0."""
        ...


PolicyT = TypeVar("PolicyT", bound=Scorer)
M = TypeVar("M", bound=Optimiser)
R = TypeVar("R", bound=FrozenPolicy)
T = TypeVar("T")

_logger = logging.getLogger(__name__)

# A single failure can be chance. Several in a row mean that the policy or a setting is broken.
_MAX_NON_FINITE_IN_A_ROW = 3


class NonFiniteValues(Exception):
    """A value is NaN or infinite. The message names it and its episodes. The weights are unchanged."""


class BatchLearner(ABC, Generic[PolicyT, M, R]):
    """Updates a policy with batches. Subclasses provide the policy, its optimizer and the reference."""

    policy: PolicyT
    optimisation: M
    reference: R | None

    def __init__(self, config: RunConfig, *, processes: ProcessGroup, packer: Packer) -> None:
        if config.algorithm.has_own_loss:
            require_sound_loss(config.algorithm)
        if config.algorithm.has_own_advantages:
            require_sound_advantages(config.algorithm)
        self._config = config
        self._processes = processes
        self._packer = packer
        self._weights = Weights(version=0, adapter=config.model.adapter)
        self._non_finite_in_a_row = 0

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        return await in_torch_thread(self._read, trajectories)

    async def update(self, batch: Batch) -> Update:
        return await in_torch_thread(self._update, batch)

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        examples = plain_examples(trajectories, [t.sampled for t in trajectories])
        return (await in_torch_thread(self._survey, self.policy, examples))[0]

    def on_scored(self, report: Callable[[int, int], object]) -> None:
        """Call `report` in torch's thread after each pack, with the number of packs done, and of all packs."""
        self._packer.on_scored = report

    @abstractmethod
    def _write_weights(self, version: int) -> Weights:
        """Make the current weights available to the sampler under this version."""

    def _read(self, trajectories: Sequence[Trajectory]) -> Readings:
        algorithm = self._config.algorithm
        masks = [scored_tokens(t, learnable_tokens(t, algorithm.masks)) for t in trajectories]
        examples = plain_examples(trajectories, masks)
        logprobs = values = reference_logprobs = None
        if algorithm.has_critic:  # otherwise the update scores what its first minibatch does not
            logprobs, values = self._survey(self.policy, examples)
        if self.reference is not None:
            with self.reference.in_place() as reference:
                reference_logprobs = self._survey(reference, examples)[0]
        return Readings(
            logprobs=logprobs if algorithm.old_logprobs == "recomputed" else None,
            reference_logprobs=reference_logprobs,
            values=values,
        )

    def _survey(self, policy: Scorer, examples: Sequence[Example]) -> tuple[Columns, Columns | None]:
        """Return the logprobs of the scored tokens, and the values before them (None without a value head)."""
        rows = [
            [tuple(floats(example.on_tokens(column_N))) for column_N in columns]
            for example, columns in zip(examples, survey(policy, examples, self._packer, self._processes), strict=True)
        ]
        has_values = all(len(row) > 1 for row in rows)
        return tuple(row[0] for row in rows), tuple(row[1] for row in rows) if has_values else None

    def _update(self, batch: Batch) -> Update:
        started, replayed_s = time.monotonic(), self._packer.replayer.spent_s
        rate, non_finite_before = self.optimisation.learning_rate, self._non_finite_in_a_row
        # Batches of supervised fine-tuning have only demonstrations.
        learned, learnable = batch.trajectories, batch.learnable
        if not learned:
            learned = batch.demonstrations
            learnable = tuple(learnable_tokens(t, self._config.algorithm.masks) for t in learned)
        known = {"learnable_tokens": float(sum(map(sum, learnable))), **mask_shares(learned, learnable)}
        if batch.groups:
            known |= staleness_metrics(batch.trajectories, self._weights.version)
        metrics, ratios, skipped = self._learn_from(batch, known)
        if skipped is None:
            self._weights = self._write_weights(self._weights.version + 1)
        metrics |= {
            **known,
            "learning_rate": rate,
            "update_skipped": float(skipped is not None),
            "nonfinite": float(self._non_finite_in_a_row > non_finite_before),
            "nonfinite_in_a_row": float(self._non_finite_in_a_row),
            "replay_s": self._packer.replayer.spent_s - replayed_s,
            "update_s": time.monotonic() - started,
        }
        return Update(step=batch.step, weights=self._weights, metrics=metrics, ratios=ratios, skipped=skipped)

    def _learn_from(self, batch: Batch, known: Mapping[str, float]) -> tuple[dict[str, float], Columns, str | None]:
        """Update the policy. Return metrics, the ratios of all tokens, and, if the policy is unchanged, the reason."""
        no_ratios = tuple((0.0,) * len(t.token_ids) for t in batch.trajectories)
        rate = self.optimisation.learning_rate
        reason = self._too_little(known["learnable_tokens"], known["learnable_share"])
        if reason is not None:
            return {}, no_ratios, reason
        try:
            parts = self.policy, self.optimisation, self._packer, self._processes
            tally = make_update(batch, self._config, *parts, version=self._weights.version)
        except NonFiniteValues as fault:
            return {}, no_ratios, self._note_non_finite(str(fault))
        self._non_finite_in_a_row = 0
        metrics = {**tally.metrics(self._config.algorithm), **self._follow(batch, tally)}
        return metrics, tally.ratios_of(batch.trajectories), self._why_unchanged(tally, rate)

    def _why_unchanged(self, tally: UpdateMetrics, rate_before: float) -> str | None:
        if tally.undone:
            rate, cap = self.optimisation.learning_rate, self._config.algorithm.kl.cap
            return (
                f"the update moved the policy by {tally.moved:.2g} nats per token and left it {tally.distance:.2g} "
                f"from the reference; it was undone because algorithm.kl.cap is {cap:g}"
                + (f", and the learning rate was halved to {rate:.2g}" if rate < rate_before else "")
            )
        if tally.steps_made:
            return None
        if tally.steps_over_cap:
            return "every optimizer step was skipped, because the KL from the reference was above algorithm.kl.cap"
        return "in every group, all rewards are equal, so there is nothing to learn"

    def _too_little(self, tokens: float, share: float) -> str | None:
        algorithm = self._config.algorithm
        least_tokens, least_share = algorithm.min_learnable_tokens, algorithm.min_learnable_share
        if tokens < least_tokens:
            return (
                f"{tokens:.0f} tokens are learnable with sampling.constrain={self._config.sampling.constrain} and "
                f"algorithm.masks={algorithm.masks}, but algorithm.min_learnable_tokens is {least_tokens}"
            )
        if share < least_share:
            return (
                f"{share:.0%} of the sampled tokens are learnable, but algorithm.min_learnable_share is "
                f"{least_share:.0%}"
            )
        return None

    def _note_non_finite(self, what: str) -> str:
        self._non_finite_in_a_row += 1
        if self._non_finite_in_a_row >= _MAX_NON_FINITE_IN_A_ROW:
            raise NonFiniteError(
                f"{self._non_finite_in_a_row} updates in a row hit NaN or Inf, most recently: {what}; the updates "
                "were rolled back",
                fix="inspect the episodes named in the message; lower learner.learning_rate"
                + ("" if self._config.model.dtype == "float32" else ", or set model.dtype to float32"),
            )
        return what

    def _follow(self, batch: Batch, tally: UpdateMetrics) -> dict[str, float]:
        """Move the reference as configured, if the policy has moved. Returns metrics of reference and batch."""
        found: dict[str, float] = {}
        if self.reference is not None:
            found["kl_coefficient"] = batch.kl_coefficient
            if tally.steps_made and not tally.undone:
                found |= self.reference.follow()
            kl = self._config.algorithm.kl
            too_far = tally.steps_over_cap > 0 or (tally.undone and kl.cap is not None and tally.distance > kl.cap)
            if too_far and kl.reference != "base":
                differing = float(self.reference.become_policy())
                found |= {"reference_synced": 1.0, "reference_tensors_differing": differing}
        if batch.demonstrations:
            found["demonstration_weight"] = batch.demonstration_weight
        return found


# A single update that uses this share of the cap is too large: the learning rate is halved.
_JUMP = 0.5


def packs_of(
    examples: Sequence[Example], packer: Packer, processes: ProcessGroup
) -> Iterator[tuple[list[int], list[Example], Pack]]:
    """Yield the packs of this process as (indices, examples, pack).

    All processes must make the same number of forward passes. A process that has fewer packs than others yields the
    first example without indices; its result does not count.
    """
    own = processes.own(packer.divide(examples, processes.size))
    for done, chosen in enumerate(own, start=1):
        some = [examples[i] for i in chosen or (0,)]
        yield chosen or [], some, packer.pack(some)
        packer.on_scored(done, len(own))


@torch.no_grad()
def survey(
    policy: Scorer, examples: Sequence[Example], packer: Packer, processes: ProcessGroup
) -> list[tuple[Tensor, ...]]:
    """Return, per example, the logprobs of its scored tokens and, with a value head, the values before them."""
    scored: list[tuple[list[int], Tensor, list[Tensor]]] = []
    for chosen, _, pack in packs_of(examples, packer, processes):
        scores = policy(pack)
        columns = [column_N for column_N in (scores.logprob_N, scores.value_N) if column_N is not None]
        scored.append((chosen, pack.sequence_N, columns))
    found: dict[int, tuple[Tensor, ...]] = {}
    for chosen, sequence_N, columns in scored:  # only now, because reading a number waits for the GPU
        for place, i in enumerate(chosen):
            found[i] = tuple(column_N[sequence_N == place].cpu() for column_N in columns)
    for part in processes.gather(found):
        found |= part
    return [found[i] for i in range(len(examples))]


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
    """Update the policy with a batch. `version` is the version of its weights before the update.

    If a value is not finite, the update is undone and NonFiniteValues is raised. If the update exceeds
    algorithm.kl.cap, it is undone and `undone` is set in the returned metrics.
    """
    update = _OngoingUpdate(batch, config, policy, optimiser, packer, processes, UpdateMetrics(version))
    cap = config.algorithm.kl.cap
    try:
        update.run()
        if cap is not None and update.tally.steps_made:
            update.measure_move()
    except NonFiniteValues:
        update.undo()
        raise
    if cap is not None and max(update.tally.moved, update.tally.distance) > cap:
        update.undo()
        update.tally.undone = True
        if update.tally.moved > _JUMP * cap:
            optimiser.halve_rate()
    return update.tally


@dataclass(slots=True)
class _OngoingUpdate:
    _batch: Batch
    _config: RunConfig
    _policy: Scorer
    _optimiser: Optimiser
    _packer: Packer
    _processes: ProcessGroup
    tally: UpdateMetrics
    undo: Callable[[], None] = field(init=False)
    _examples: list[Example] = field(init=False)
    _demonstrations: list[Example] = field(init=False)
    _minibatches_left: int = field(init=False, default=0)
    _scores_are_old: bool = field(init=False, default=False)  # the next minibatch is scored by the old policy

    def __post_init__(self) -> None:
        self.undo = self._optimiser.forget_gradients  # all that there is to undo before the first step
        self._examples = make_examples(self._batch)
        imitated = self._batch.demonstrations if self._batch.demonstration_weight > 0 else ()
        masks = [learnable_tokens(t, self._config.algorithm.masks) for t in imitated]
        self._demonstrations = plain_examples(imitated, masks)

    def run(self) -> None:
        broken = first_non_finite(self._examples)
        if broken is not None:
            raise NonFiniteValues(broken)
        minibatches = list(minibatches_of(self._batch, self._config))
        count = len(minibatches) // self._config.algorithm.epochs
        until_a_step_scores_are_old = self._read_old_logprobs(minibatches)
        for number, minibatch in enumerate(minibatches):
            self._scores_are_old = until_a_step_scores_are_old and not self.tally.steps_made
            self._minibatches_left = len(minibatches) - number - 1
            self._learn([self._examples[i] for i in minibatch], self._demonstrations[number % count :: count])

    def _read_old_logprobs(self, minibatches: Sequence[Sequence[int]]) -> bool:
        """Score the examples with the policy before the update, if the objective needs that and it was not done yet.

        With one epoch and no KL cap, it leaves out the first minibatch, whose own forward passes give the same
        logprobs, and, without demonstrations, minibatches that move no weights. Returns True if the first was left out.
        """
        algorithm = self._config.algorithm
        if algorithm.old_logprobs != "recomputed" or self._batch.readings.logprobs is not None:
            return False
        is_enough = algorithm.epochs == 1 and algorithm.kl.cap is None
        needed = minibatches
        if is_enough:
            moving = [m for m in minibatches[1:] if self._has_signal([self._examples[i] for i in m])]
            needed = minibatches[1:] if self._demonstrations else moving
        later = [i for minibatch in needed for i in minibatch]
        rows = survey(self._policy, [self._examples[i] for i in later], self._packer, self._processes) if later else []
        for i, (old_N, *_) in zip(later, rows, strict=True):
            columns = replace(self._examples[i].columns, old_logprob_N=old_N.float())
            self._examples[i] = replace(self._examples[i], columns=columns)
        return is_enough

    @torch.no_grad()
    def measure_move(self) -> None:
        """Score the batch after all steps, and measure how far the policy is from the old one and the reference."""
        tokens, moved, distance, checked = 0, torch.zeros(()), torch.zeros(()), list[_Checked]()
        for is_own, some, pack in self._packs(self._examples):
            logprob_N = self._policy(pack).logprob_N
            checked.append(_Checked.of(some, pack, logprob_N, logprob_N.sum()))
            columns, logprob_N = pack.columns.learned(), logprob_N[pack.columns.learned_N]
            if is_own:
                tokens += len(logprob_N)
                moved = moved + divergence(columns.old_logprob_N, logprob_N, "k3").double().sum()
            if is_own and columns.reference_logprob_N is not None:
                estimator = self._config.algorithm.kl.estimator
                distance = distance + divergence(logprob_N, columns.reference_logprob_N, estimator).double().sum()
        self._refuse_non_finite(checked)
        parts = self._processes.gather((tokens, float(moved), float(distance)))
        tokens, moved, distance = map(sum, zip(*parts, strict=True))
        if tokens:  # otherwise only demonstrations changed the policy
            self.tally.moved, self.tally.distance = moved / tokens, distance / tokens

    def _learn(self, examples: Sequence[Example], demonstrations: Sequence[Example]) -> None:
        """Make one optimizer step, unless nothing in the minibatch moves the weights."""
        learnable = any(example.learnable_tokens for example in examples)
        moves = bool(demonstrations) or (learnable and self._has_signal(examples))
        if not moves:
            self.tally.minibatches_without_signal += 1
            versions = [example.columns.weights_version_N for example in examples]
            if not learnable or not self.tally.gains_from(torch.cat(versions)):
                return  # otherwise score the minibatch anyway, to check parity
        seen, imitated = self._in_memory(lambda: self._accumulate(examples, demonstrations, learn=moves))
        for own in seen:
            self.tally.add(own)
        self.tally.imitation_losses += imitated
        loss = sum(own.loss for own in seen) + sum(imitated) * self._batch.demonstration_weight
        if learnable:
            self.tally.check_parity(self._config.learner.max_parity_error)
        if moves and self._is_over_cap(seen):
            self.tally.steps_over_cap += 1
        elif moves:
            can_fail_later = self._minibatches_left > 0 or self._config.algorithm.kl.cap is not None
            if not self.tally.steps_made and can_fail_later:
                self.undo = self._optimiser.make_undo()
            norm = self._optimiser.step()
            if norm is not None and not math.isfinite(norm):
                raise NonFiniteValues(
                    f"the gradient norm is not a finite number after the backward pass of {_named(examples)}"
                )
            self.tally.add_step(norm)
        self.tally.losses.append(loss)

    def _accumulate(
        self, examples: Sequence[Example], demonstrations: Sequence[Example], *, learn: bool
    ) -> tuple[list[Seen], list[float]]:
        """Accumulate the gradients of a minibatch. Return the results of its packs, and the imitation loss if any."""
        self._optimiser.forget_gradients()
        learnable = any(example.learnable_tokens for example in examples)
        seen = self._reinforce(examples, learn=learn) if learnable else []
        imitates = learn and demonstrations and not self._is_over_cap(seen)
        return seen, [self._imitate(demonstrations)] if imitates else []

    def _in_memory(self, work: Callable[[], T]) -> T:
        """Do the work of a minibatch. If the device runs out of memory, repeat it once with packs of half the size.

        Several processes cannot repeat it, because those that did not fail wait for the one that did.
        """
        try:
            return work()
        except torch.OutOfMemoryError as error:
            if self._processes.size > 1:
                raise
            _logger.warning("a pack of %d tokens does not fit into memory (%s)", self._packer.tokens, error)
        self._packer.tokens = max(1, self._packer.tokens // 2)
        self.tally.splits += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return work()

    def _has_signal(self, examples: Sequence[Example]) -> bool:
        algorithm = self._config.algorithm
        pulled = self._batch.kl_coefficient > 0 and not algorithm.kl.in_reward
        if pulled or algorithm.entropy > 0 or algorithm.has_critic:
            return True
        return any(bool(example.columns.advantage_N.any()) for example in examples)

    def _is_over_cap(self, minibatch: Sequence[Seen]) -> bool:
        cap = self._config.algorithm.kl.cap
        if cap is None or not minibatch:
            return False
        return float(torch.cat([own.columns["kl_reference"] for own in minibatch]).mean()) > cap

    def _packs(self, examples: Sequence[Example]) -> Iterator[tuple[list[int], list[Example], Pack]]:
        return packs_of(examples, self._packer, self._processes)

    def _reinforce(self, examples: Sequence[Example], *, learn: bool) -> list[Seen]:
        """Score a minibatch pack by pack; with `learn`, accumulate gradients. Returns the results of all processes."""
        algorithm = self._config.algorithm
        counts_S = torch.tensor([example.learnable_tokens for example in examples])
        longest = self._config.model.context_tokens
        weight_S = sequence_weights(counts_S, algorithm.aggregation, constant_tokens=longest).float()
        results: list[Callable[[], Seen]] = []
        checked: list[_Checked] = []
        for chosen, some, pack in self._packs(examples):
            weight_N = weight_S[chosen or [0]].to(pack.sequence_N.device)[pack.sequence_N] * bool(chosen)
            with torch.set_grad_enabled(learn):
                scores = self._policy(pack)
                if self._scores_are_old:
                    columns = replace(pack.columns, old_logprob_N=scores.logprob_N.detach())
                    pack = replace(pack, columns=columns)
                outcome = policy_outcome(
                    scores, pack.columns, pack.sequence_N, weight_N, algorithm, self._batch.kl_coefficient
                )
            checked.append(_Checked.of(some, pack, scores.logprob_N, outcome.loss))
            if learn:
                self._backward(outcome.loss, checked[-1])
            if chosen:
                results.append(Seen.later(some, scores, pack, outcome))
        self._refuse_non_finite(checked)
        return [own for part in self._processes.gather([result() for result in results]) for own in part]

    def _imitate(self, demonstrations: Sequence[Example]) -> float:
        """Accumulate the gradients of the imitation loss times its weight. Return the loss: the mean over tokens."""
        tokens = sum(len(example.position_N) for example in demonstrations)
        weight, losses, checked = self._batch.demonstration_weight, list[Tensor](), list[_Checked]()
        for chosen, some, pack in self._packs(demonstrations):
            logprob_N = self._policy(pack).logprob_N
            own = imitation_loss(logprob_N).sum() / tokens * weight * bool(chosen)
            checked.append(_Checked.of(some, pack, logprob_N, own))
            self._backward(own, checked[-1])
            losses.append(own.detach())
        self._refuse_non_finite(checked)
        return sum(self._processes.gather(sum(floats(torch.stack(losses))))) / weight

    def _backward(self, loss: Tensor, checked: _Checked) -> None:
        self._processes.backward(loss)
        checked.gradient_is_finite = self._optimiser.gradients_are_finite()

    def _refuse_non_finite(self, checked: Sequence[_Checked]) -> None:
        """Raise NonFiniteValues for the first pack with a value that is not finite in any process.

        The flags of all packs are read at once, because each reading waits for the GPU.
        """
        flags = [one.loss_is_finite for one in checked] + [one.gradient_is_finite for one in checked]
        if self._processes.everywhere(not checked or bool(torch.stack(flags).all())):
            return
        rounds = self._processes.gather([(one.fault(), bool(one.gradient_is_finite), one.names) for one in checked])
        for together in zip(*rounds, strict=True):
            faults = [fault for fault, _, _ in together if fault is not None]
            if faults:
                raise NonFiniteValues("; ".join(faults))
            if not all(is_finite for _, is_finite, _ in together):
                names = "; ".join(names for _, _, names in together)
                raise NonFiniteValues(f"a gradient is not a finite number after the backward pass of {names}")


@dataclass(slots=True)
class _Checked:
    """Whether the values of a pack are finite. The flags stay on the device until `_refuse_non_finite` reads them."""

    examples: Sequence[Example]
    sequence_N: Tensor
    finite_N: Tensor
    loss_is_finite: Tensor
    gradient_is_finite: Tensor

    @classmethod
    def of(cls, examples: Sequence[Example], pack: Pack, logprob_N: Tensor, loss: Tensor) -> _Checked:
        finite_N = logprob_N.detach().isfinite()
        fine = finite_N.all() & loss.detach().isfinite()
        return cls(examples, pack.sequence_N, finite_N, fine, torch.ones_like(fine))

    @property
    def names(self) -> str:
        return _named(self.examples)

    def fault(self) -> str | None:
        if self.loss_is_finite:
            return None
        at_fault = [e for i, e in enumerate(self.examples) if not self.finite_N[self.sequence_N == i].all()]
        what = "a logprob" if at_fault else "the loss"
        return f"{what} is not a finite number in {_named(at_fault or self.examples)}"


def _named(examples: Sequence[Example]) -> str:
    return "; ".join(example.name for example in examples)


def minibatches_of(batch: Batch, config: RunConfig) -> Iterator[list[int]]:
    """Yield the trajectory indices of each minibatch.

    The seed determines the order of groups in each epoch. The sizes of minibatches differ by at most one trajectory, so
    a group may be split between two.
    """
    members: list[list[int]] = []
    for group in batch.groups:
        first = members[-1][-1] + 1 if members else 0
        members.append(list(range(first, first + len(group.trajectories))))
    # Groups without signal may have been dropped, so there can be fewer trajectories than minibatches. Without
    # groups, the demonstrations are one minibatch.
    count = max(1, min(config.algorithm.minibatches, len(batch.trajectories)))
    for epoch in range(config.algorithm.epochs):
        groups = list(members)
        random.Random(derive_seed(config.seed, "minibatches", batch.step, epoch)).shuffle(groups)
        order = [i for group in groups for i in group]
        bounds = [len(order) * number // count for number in range(count + 1)]
        yield from (order[low:high] for low, high in pairwise(bounds))
