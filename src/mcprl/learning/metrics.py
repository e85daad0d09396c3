"""The metrics of an update, collected pack by pack, and the check that sampler and learner agree on logprobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig
from mcprl.errors import ParityError
from mcprl.learning.algorithms import divergence, explained_variance, parity_metrics, ratio_metrics
from mcprl.learning.algorithms.advantages import floats
from mcprl.learning.algorithms.objective import MAX_IMPORTANCE, Outcome, Scores
from mcprl.learning.packing import Example, Pack, check_alignment
from mcprl.records import Columns, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the metrics need from one scored pack, detached and on the CPU so that processes can exchange it.

    `sampled_tokens` counts all sampled tokens of the pack, including forced ones. `ratios` maps the task id and
    the member number of a trajectory to one ratio per token.

    Seen(loss=-0.02, alignment=1.0, sampled_tokens=3,
         columns={"logprob": tensor([-0.3, -1.2]), "policy_loss": tensor([-0.01, -0.01]), …},
         ratios={("meet-ana", 0): tensor([0.0, 1.0, 0.97])})
    """

    loss: float
    alignment: float
    sampled_tokens: int
    columns: Mapping[str, Tensor]
    ratios: Mapping[tuple[str, int], Tensor]

    @classmethod
    def later(cls, examples: Sequence[Example], scores: Scores, pack: Pack, outcome: Outcome) -> Callable[[], Seen]:
        """Return a function that calls `Seen.of(…)`, which waits for a GPU. The function holds no graph and no mask."""
        scores = scores._replace(logprob_N=scores.logprob_N.detach(), entropy_N=scores.entropy_N.detach(), value_N=None)
        pack = replace(pack, targets=pack.targets._replace(admissible_NW=None))
        return partial(cls.of, examples, scores, pack, replace(outcome, loss=outcome.loss.detach()))

    @classmethod
    def of(cls, examples: Sequence[Example], scores: Scores, pack: Pack, outcome: Outcome) -> Seen:
        columns, carries_N = pack.columns, pack.columns.carries_loss_N
        seen = {
            "logprob": scores.logprob_N,
            "sampled": columns.sampled_logprob_N,
            "carries": carries_N,
            "version": columns.weights_version_N,
            "old": columns.old_logprob_N.cpu()[carries_N],
            "advantage": columns.advantage_N.cpu()[carries_N],
            "entropy": scores.entropy_N.cpu()[carries_N],
            **outcome.parts,
        }
        if columns.return_N is not None:
            seen["return"] = columns.return_N.cpu()[carries_N]
        change_N = scores.logprob_N.detach() - columns.old_logprob_N
        ratio_N, sequence_N = torch.where(carries_N, change_N.exp().cpu(), 0.0), pack.sequence_N.cpu()
        return cls(
            loss=float(outcome.loss.detach()),
            alignment=check_alignment(pack, examples),
            sampled_tokens=sum(sum(example.trajectory.sampled) for example in examples),
            columns={name: column_N.detach().cpu() for name, column_N in seen.items()},
            ratios={
                (e.trajectory.task_id, e.trajectory.member): e.on_tokens(ratio_N[sequence_N == place])
                for place, e in enumerate(examples)
            },
        )


@dataclass(slots=True)
class UpdateMetrics:
    """The metrics of an update, collected pack by pack. The result is the same on every process.

    `version` is the version of the learner's weights before the update. With `algorithm.kl.cap`, `moved` is the
    divergence of the new policy from the old one, and `distance` its divergence from the reference, both in nats per
    token that carries loss. `splits` counts minibatches that ran out of memory and were repeated with smaller packs.
    """

    version: int
    minibatches_without_signal: int = 0
    steps_over_cap: int = 0
    splits: int = 0
    steps_made: int = 0
    moved: float = 0.0
    distance: float = 0.0
    undone: bool = False
    losses: list[float] = field(default_factory=list[float])
    imitation_losses: list[float] = field(default_factory=list[float])
    _grad_norms: list[float] = field(default_factory=list[float])
    _seen: list[Seen] = field(default_factory=list[Seen])
    _columns: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict[str, list[Tensor]](list))
    _parity: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def looked_at_parity(self) -> bool:
        """Whether `check_parity` has compared fresh tokens."""
        return self._parity.get("parity_tokens", 0.0) > 0

    def gains_from(self, version_N: Tensor) -> bool:
        """Whether scoring tokens of these versions gives the update's first metrics or its first parity figures."""
        wants_fresh = not self.looked_at_parity and not self.steps_made
        return not self._seen or (wants_fresh and bool((version_N == self.version).any()))

    def add(self, seen: Seen) -> None:
        self._seen.append(seen)
        for name, column_N in seen.columns.items():
            self._columns[name].append(column_N)

    def add_step(self, grad_norm: float | None) -> None:
        self.steps_made += 1
        if grad_norm is not None:
            self._grad_norms.append(grad_norm)

    def check_parity(self, max_parity_error: float) -> None:
        """Raise ParityError if sampler and learner disagree about the logprobs of fresh tokens.

        Fresh tokens were sampled with the learner's current weights; for tokens of older weights a difference is
        expected. The check runs after each minibatch until one had fresh tokens or an optimizer step was made.

        The check uses the mean difference per token. Rounding errors keep it small for any number of tokens. A real
        error raises it, whether all tokens differ a little or a few tokens differ a lot. The largest difference grows
        with the number of tokens even if nothing is wrong, so it is only reported as a health metric.
        """
        if self.looked_at_parity or self.steps_made:
            return
        fresh_N = self._column("version") == self.version
        self._parity = {"parity_tokens": float(fresh_N.sum())}
        if not fresh_N.any():
            return
        logprob_N, sampled_N = self._column("logprob")[fresh_N], self._column("sampled")[fresh_N]
        self._parity |= parity_metrics(logprob_N, sampled_N)
        mean = self._parity["parity_logprob_mean_abs_error"]
        if not mean <= max_parity_error:
            raise ParityError(
                f"before any update, sampler and learner disagree by {mean:.3g} nats per token "
                f"(max: {self._parity['parity_logprob_max_abs_error']:.3g}) on the same {len(sampled_N)} tokens; "
                f"learner.max_parity_error is {max_parity_error:g}",
                fix="use the same model and dtype in both, or raise learner.max_parity_error for bfloat16",
            )

    def ratios_of(self, trajectories: Sequence[Trajectory]) -> Columns:
        """Return the ratio of each token when it was last scored; 0 if it never was."""
        found = {(t.task_id, t.member): torch.zeros(len(t.token_ids)) for t in trajectories}
        for seen in self._seen:
            found |= seen.ratios
        return tuple(tuple(floats(ratio_T)) for ratio_T in found.values())

    def metrics(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        """Return the metrics of an update that scored at least one token, or learned from demonstrations only."""
        found = {
            "loss": fmean(self.losses) if self.losses else 0.0,
            "optimiser_steps": 0.0 if self.undone else float(self.steps_made),
        }
        if self.splits:
            found["pack_splits"] = float(self.splits)
        if self._seen:
            found |= self._of_episodes(algorithm)
        if self.imitation_losses:
            found["imitation_loss"] = fmean(self.imitation_losses)
        if self._grad_norms or not self.steps_made:  # otherwise the engine did not report norms
            found["grad_norm"] = fmean(self._grad_norms) if self._grad_norms else 0.0
        return found

    def _of_episodes(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        carries_N = self._column("carries")
        logprob_N, sampled_N = self._column("logprob"), self._column("sampled")
        moved_N = divergence(sampled_N, logprob_N, "k3")
        return {
            "optimiser_steps_over_cap": float(self.steps_over_cap),
            "minibatches_without_signal": float(self.minibatches_without_signal),
            "alignment": min(seen.alignment for seen in self._seen),
            "entropy": float(self._column("entropy").mean()),
            **self._parity,
            **ratio_metrics(
                logprob_N[carries_N],
                self._column("old"),
                self._column("advantage"),
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
            ),
            "kl": float(moved_N[carries_N].mean()),
            # A forced token has probability 1 under any policy, so it counts in the denominator only.
            "kl_unmasked": float(moved_N.sum()) / sum(seen.sampled_tokens for seen in self._seen),
            **self._parts(algorithm),
        }

    def _parts(self, algorithm: AlgorithmConfig) -> dict[str, float]:
        """Return the metrics of those parts of the objective that are in use."""
        found: dict[str, float] = {}
        if algorithm.kl.cap is not None:
            found |= {"kl_update": self.moved, "update_undone": float(self.undone)}
        minibatches = max(1, len(self.losses))
        for name in ("policy_loss", "kl_loss", "value_loss"):
            if name in self._columns:
                found[name] = float(self._column(name).sum()) / minibatches  # token losses include their weights
        if "kl_reference" in self._columns:
            found["kl_reference"] = float(self._column("kl_reference").mean())
        found["gated_fraction"] = float(self._column("gated").mean()) if "gated" in self._columns else 0.0
        if "importance" in self._columns:
            weight_N = self._column("importance")
            found["importance_mean"] = float(weight_N.mean())
            found["importance_cut_fraction"] = float((weight_N >= MAX_IMPORTANCE).float().mean())
        if "value" in self._columns:
            found["explained_variance"] = explained_variance(self._column("value"), self._column("return"))
        return found

    def _column(self, name: str) -> Tensor:
        return torch.cat(self._columns[name])
