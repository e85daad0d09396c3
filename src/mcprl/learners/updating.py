"""One update: the minibatches of a batch, the packs of a minibatch, an optimiser step for each minibatch.

An update happens whole or not at all: where a logprob, a loss or a gradient is no number, all of it is undone. So it is
if it carries the policy beyond algorithm.kl.cap, which is measured when all its steps are made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from mcprl.algorithms import divergence, imitation_loss, learnable_tokens, sequence_weights
from mcprl.config import RunConfig
from mcprl.learners.crew import Crew
from mcprl.learners.lessons import Lesson, Pack, check_alignment, first_spoilt, make_lessons, plain_lessons
from mcprl.learners.objective import policy_outcome
from mcprl.learners.packing import Packer
from mcprl.learners.policy import Scores
from mcprl.learners.tally import Seen, Tally
from mcprl.records import Batch
from mcprl.seeds import derive_seed

__all__ = ["Optimiser", "Scorer", "SpoiltError", "make_update", "minibatches_of"]


class SpoiltError(Exception):
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

    def way_back(self) -> Callable[[], None]:
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
    crew: Crew,
    *,
    version: int,
) -> Tally:
    """Move the policy, whose weights are of this version, by a batch. What was seen on the way is in the tally."""
    update = _OngoingUpdate(batch, config, policy, optimiser, packer, crew, Tally(version))
    undo = optimiser.way_back()
    cap = config.algorithm.kl.cap
    try:
        update.run()
        if cap is not None and update.tally.steps_made:
            update.measure_move()
    except SpoiltError:
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
        crew: Crew,
        tally: Tally,
    ) -> None:
        self._batch = batch
        self._config = config
        self._policy = policy
        self._optimiser = optimiser
        self._packer = packer
        self._crew = crew
        self._lessons = make_lessons(batch)
        masks = [learnable_tokens(t, config.algorithm.masks) for t in batch.demonstrations]
        self._demonstrations = plain_lessons(batch.demonstrations, masks) if batch.demonstration_weight > 0 else []
        self.tally = tally

    def run(self) -> None:
        spoilt = first_spoilt(self._lessons)
        if spoilt is not None:
            raise SpoiltError(spoilt)
        minibatches = list(minibatches_of(self._batch, self._config))
        count = len(minibatches) // self._config.algorithm.epochs
        for number, minibatch in enumerate(minibatches):
            self._learn([self._lessons[i] for i in minibatch], self._demonstrations[number % count :: count])

    @torch.no_grad()
    def measure_move(self) -> None:
        """Score the batch once more, after all steps: how far the policy is now from the old one and the reference."""
        tokens, moved, distance = 0, 0.0, 0.0
        for chosen in self._crew.own(self._packer.divide(self._lessons)):
            some = [self._lessons[i] for i in chosen or (0,)]
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
        tokens, moved, distance = map(sum, zip(*self._crew.gather((tokens, moved, distance)), strict=True))
        if tokens:  # else only demonstrations moved the policy
            self.tally.moved, self.tally.distance = moved / tokens, distance / tokens

    def _learn(self, lessons: Sequence[Lesson], demonstrations: Sequence[Lesson]) -> None:
        """One optimiser step. Where nothing in the minibatch moves the weights, there is no step to make."""
        learnable = any(lesson.learnable_tokens for lesson in lessons)
        moves = bool(demonstrations) or (learnable and self._has_signal(lessons))
        if not moves:
            self.tally.minibatches_without_signal += 1
            if self.tally.looked_at_parity or not learnable:
                return  # else the first tokens are scored all the same, for parity
        self._optimiser.forget_gradients()
        loss = 0.0
        if learnable:
            loss = self._reinforce(lessons, learn=moves)
            self.tally.check_parity(self._config.learner.max_parity_error)
        if moves and learnable and self._is_over_cap():
            self.tally.steps_over_cap += 1
        elif moves:
            if demonstrations:
                loss += self._imitate(demonstrations)
            self._step(lessons)
        self.tally.close_minibatch(loss)

    def _is_over_cap(self) -> bool:
        cap = self._config.algorithm.kl.cap
        return cap is not None and self.tally.minibatch_mean("kl_reference") > cap

    def _has_signal(self, lessons: Sequence[Lesson]) -> bool:
        algorithm = self._config.algorithm
        pulled = self._batch.kl_coefficient > 0 and algorithm.kl.place == "loss"
        if pulled or algorithm.entropy > 0 or algorithm.has_critic:
            return True
        return any(bool(lesson.columns.advantage_N.any()) for lesson in lessons)

    def _step(self, lessons: Sequence[Lesson]) -> None:
        norm = self._optimiser.step()
        if norm is not None and not math.isfinite(norm):
            raise SpoiltError(f"the norm of the gradients is not a finite number after {_named(lessons)}")
        self.tally.add_step(norm)

    def _reinforce(self, lessons: Sequence[Lesson], *, learn: bool) -> float:
        """Score a minibatch pack by pack; with `learn`, add up its gradients. Its loss."""
        algorithm = self._config.algorithm
        counts_S = torch.tensor([lesson.learnable_tokens for lesson in lessons])
        weight_S = sequence_weights(counts_S, algorithm.aggregation, constant_tokens=algorithm.constant_tokens).float()
        seen: list[Seen] = []
        for chosen in self._crew.own(self._packer.divide(lessons)):
            some = [lessons[i] for i in chosen or (0,)]
            pack = self._packer.pack(some)
            weight_N = weight_S[chosen or [0]].to(pack.sequence_N.device)[pack.sequence_N] * bool(chosen)
            with torch.set_grad_enabled(learn):
                scores = self._policy(pack)
                outcome = policy_outcome(scores, pack, weight_N, algorithm, self._batch.kl_coefficient)
            self._refuse_spoilt(scores.logprob_N, outcome.loss, pack, some)
            if learn:
                self._backward(outcome.loss, some)
            if chosen:
                sampled = sum(sum(lesson.trajectory.sampled) for lesson in some)
                alignment = check_alignment(pack, some)
                seen.append(Seen.of(some, scores, pack, outcome, alignment=alignment, sampled_tokens=sampled))
        everyones = [own for part in self._crew.gather(seen) for own in part]
        for own in everyones:
            self.tally.add(own)
        return sum(own.loss for own in everyones)

    def _imitate(self, demonstrations: Sequence[Lesson]) -> float:
        """Add the gradients of the imitation loss, a mean over its tokens, times its weight. That loss."""
        tokens = sum(len(lesson.position_N) for lesson in demonstrations)
        loss = 0.0
        for chosen in self._crew.own(self._packer.divide(demonstrations)):
            some = [demonstrations[i] for i in chosen or (0,)]
            pack = self._packer.pack(some)
            logprob_N = self._policy(pack).logprob_N
            own = imitation_loss(logprob_N).sum() / tokens * self._batch.demonstration_weight * bool(chosen)
            self._refuse_spoilt(logprob_N, own, pack, some)
            self._backward(own, some)
            loss += float(own.detach())
        loss = sum(self._crew.gather(loss))
        self.tally.add_imitation(loss / self._batch.demonstration_weight)
        return loss

    def _backward(self, loss: Tensor, lessons: Sequence[Lesson]) -> None:
        self._crew.backward(loss)
        if not self._crew.everywhere(self._optimiser.gradients_are_finite()):
            names = "; ".join(self._crew.gather(_named(lessons)))
            raise SpoiltError(f"a gradient is not a finite number after {names}")

    def _refuse_spoilt(self, logprob_N: Tensor, loss: Tensor, pack: Pack, lessons: Sequence[Lesson]) -> None:
        finite_N = logprob_N.detach().isfinite()
        fine = bool(finite_N.all()) and bool(loss.detach().isfinite())
        if self._crew.everywhere(fine):
            return
        at_fault = [lesson for i, lesson in enumerate(lessons) if not finite_N[pack.sequence_N == i].all()]
        what = "a logprob" if at_fault else "the loss"
        own = None if fine else f"{what} is not a finite number in {_named(at_fault or lessons)}"
        raise SpoiltError("; ".join(found for found in self._crew.gather(own) if found is not None))


def _named(lessons: Sequence[Lesson]) -> str:
    return "; ".join(lesson.name for lesson in lessons)


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
