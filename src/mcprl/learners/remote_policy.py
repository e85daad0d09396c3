"""A policy behind an API, as an update sees it: scores with gradients, an optimiser, a reference.

The server computes logprobs, and derivatives by weights. The objective in between is computed here, by the very code
that other engines use: the logprobs that came back are leaves, `backward` leaves the derivative of the loss by each of
them, and those go back to the server as the slopes of a linear loss. So every objective has the same gradient on every
engine, whatever losses the server itself knows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mcprl.algorithms.plain_numbers import floats, ints
from mcprl.config import KlConfig, RunConfig
from mcprl.learners.lessons import Pack
from mcprl.learners.optimisation import learning_rate_share
from mcprl.learners.policy import Scores
from mcprl.skyrl.client import AdamStep, ScoredRow
from mcprl.skyrl.engine import SkyrlEngine

__all__ = ["RemoteOptimisation", "RemotePolicy", "RemoteReference"]

_GRAD_NORM = "skyrl.ai/grad_norm"


@dataclass(frozen=True, slots=True)
class _Scored:
    """Rows that were scored to learn from, and the leaf with the logprobs of their scored tokens.

    `before_N` is the place in its row of the token that each is predicted from.
    """

    rows: tuple[tuple[int, ...], ...]
    sequence_N: Tensor
    before_N: Tensor
    logprob_N: Tensor

    def told(self) -> list[ScoredRow]:
        """What the server is to learn of rows that have a scored token."""
        gradient_N = self.logprob_N.grad
        assert gradient_N is not None, "scored to learn from, and not learnt from"
        found: list[ScoredRow] = []
        for number, token_ids in enumerate(self.rows):
            own_N = self.sequence_N == number
            if own_N.any():
                scored_T, logprob_T, gradient_T = torch.zeros(3, len(token_ids) - 1)
                scored_T[self.before_N[own_N]] = 1.0
                logprob_T[self.before_N[own_N]] = self.logprob_N.detach()[own_N]
                gradient_T[self.before_N[own_N]] = gradient_N[own_N]
                found.append(
                    ScoredRow(
                        token_ids=token_ids,
                        scored=tuple(one > 0 for one in floats(scored_T)),
                        logprobs=tuple(floats(logprob_T)),
                        gradients=tuple(floats(gradient_T)),
                    )
                )
        return found


class RemotePolicy:
    """Scores packs of padded rows, called in another thread than the event loop's.

    The entropy of a token's distribution is not known: in its place stands minus the logprob of the token that was
    drawn, whose mean over sampled tokens is the same.
    """

    def __init__(self, engine: SkyrlEngine, *, is_reference: bool = False) -> None:
        self._engine = engine
        self._is_reference = is_reference
        self.scored: list[_Scored] = []

    def __call__(self, pack: Pack) -> Scores:
        id_X, width = pack.layout.token_id_BT.flatten(), pack.layout.token_id_BT.shape[1]
        rows = tuple(tuple(ints(id_X[place_T])) for place_T in pack.layout.places)
        columns = self._engine.from_thread(self._engine.score(rows, reference=self._is_reference))
        before_N = pack.before_N - pack.sequence_N * width
        places = zip(ints(pack.sequence_N), ints(before_N), strict=True)
        logprob_N = torch.tensor([columns[row][place] for row, place in places], dtype=torch.float32)
        entropy_N = -logprob_N
        if torch.is_grad_enabled():
            logprob_N.requires_grad_()
            self.scored.append(_Scored(rows, pack.sequence_N, before_N, logprob_N))
        return Scores(logprob_N, entropy_N, None)


class RemoteOptimisation:
    """Adam on the server, and the schedule of its learning rate here. `steps` counts those that were made.

    `rate_factor` is what the schedule's rate is multiplied with: less than 1 after updates that went too far.
    """

    def __init__(self, policy: RemotePolicy, engine: SkyrlEngine, config: RunConfig) -> None:
        learner, algorithm = config.learner, config.algorithm
        self.steps = 0
        self.rate_factor = 1.0
        self._policy = policy
        self._engine = engine
        self._learner = learner
        self._share = partial(
            learning_rate_share,
            schedule=learner.schedule,
            warmup=learner.warmup_steps,
            total=config.training.steps * algorithm.epochs * algorithm.minibatches,
        )

    @property
    def learning_rate(self) -> float:
        """The one in force for the next step."""
        return self._learner.learning_rate * self._share(self.steps) * self.rate_factor

    def forget_gradients(self) -> None:
        """None have been sent: they wait here for the step."""
        self._policy.scored.clear()

    def gradients_are_finite(self) -> bool:
        """Whether every derivative by a logprob is a number. Those by weights show in the norm of a step."""
        leaves = (one.logprob_N.grad for one in self._policy.scored)
        return all(bool(grad.isfinite().all()) for grad in leaves if grad is not None)

    def step(self) -> float | None:
        """Send all gradients and make one step; their norm, where the server says it."""
        rows = [row for one in self._policy.scored for row in one.told()]
        adam = AdamStep(learning_rate=self.learning_rate, weight_decay=self._learner.weight_decay)
        told = self._engine.from_thread(self._engine.learn(rows, adam))
        self._policy.scored.clear()
        self.steps += 1
        return told.get(_GRAD_NORM)

    def way_back(self) -> Callable[[], None]:
        """What to call to make all steps from now on not to have been."""
        steps = self.steps

        def undo() -> None:
            self._policy.scored.clear()
            if self.steps != steps:
                self._engine.from_thread(self._engine.reload())
                self.steps = steps

        return undo

    def halve_rate(self) -> None:
        """Make all steps from now on with half the learning rate, whatever the schedule says."""
        self.rate_factor /= 2


class RemoteReference:
    """A second adapter on the server: the untouched model, or a copy of the policy every so many updates."""

    def __init__(self, engine: SkyrlEngine, kl: KlConfig) -> None:
        self._engine = engine
        self._kl = kl
        self.updates = 0

    @contextmanager
    def in_place(self) -> Generator[RemotePolicy]:
        """The reference, as a policy to score with."""
        yield RemotePolicy(self._engine, is_reference=True)

    def follow(self) -> dict[str, float]:
        """After an update: move as configured, and say what was done and whether it took."""
        self.updates += 1
        if self._kl.reference == "sync" and self.updates % self._kl.sync_every == 0:
            return {"reference_synced": 1.0, "reference_tensors_differing": float(self.become_policy())}
        return {"reference_synced": 0.0}

    def become_policy(self) -> int:
        """Take over the policy's state whole, or raise: nothing differs afterwards."""
        self._engine.from_thread(self._engine.sync_reference())
        return 0
