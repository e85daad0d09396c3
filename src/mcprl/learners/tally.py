"""What an update has seen, and the metrics that are made of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from mcprl.algorithms import divergence, explained_variance, parity_metrics, ratio_metrics
from mcprl.algorithms.plain_numbers import floats
from mcprl.config import AlgorithmConfig
from mcprl.errors import ParityError
from mcprl.learners.lessons import Lesson, Pack
from mcprl.learners.objective import Outcome
from mcprl.learners.policy import Scores
from mcprl.records import Columns, Trajectory

__all__ = ["Seen", "Tally"]


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
        lessons: Sequence[Lesson],
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
            ratios=_ratios(lessons, pack, scores.logprob_N),
        )


class Tally:
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


def _ratios(lessons: Sequence[Lesson], pack: Pack, logprob_N: Tensor) -> dict[tuple[str, int], Tensor]:
    columns = pack.columns
    change_N = logprob_N.detach() - columns.old_logprob_N
    ratio_N = torch.where(columns.carries_loss_N, change_N.exp(), 0.0)
    return {
        (lesson.trajectory.task_id, lesson.trajectory.member): lesson.on_tokens(ratio_N[pack.sequence_N == place])
        for place, lesson in enumerate(lessons)
    }
