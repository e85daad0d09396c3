"""The learner's interface, and `BatchLearner`: read a batch, update on it, in any process group."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeVar

import torch

from mcprl.config import RunConfig
from mcprl.errors import NonFiniteError
from mcprl.learning.algorithms import learnable_tokens, mask_shares, staleness_metrics
from mcprl.learning.algorithms.advantages import floats
from mcprl.learning.packing import Example, Packer, Replayer, plain_examples, scored_tokens
from mcprl.learning.process_group import ProcessGroup
from mcprl.learning.update import NonFiniteValues, Optimiser, Scorer, UpdateMetrics, make_update
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars
    from mcprl.skyrl.engine import SkyrlEngine

__all__ = ["BatchLearner", "Learner", "in_torch_thread", "open_learner"]


P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="torch")


async def in_torch_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, once all that was asked for before it is done."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *args, **kwargs))


_MAX_NON_FINITE_IN_A_ROW = 3


class FrozenPolicy(Protocol):
    """The reference, as a learner uses it."""

    def in_place(self) -> AbstractContextManager[Scorer]:
        """The reference, as a policy to score with."""
        ...

    def follow(self) -> dict[str, float]:
        """After an update: move as configured, and say what was done and whether it took."""
        ...

    def become_policy(self) -> int:
        """Take over every tensor of the policy; the number that still differ afterwards, which must be 0."""
        ...


PolicyT = TypeVar("PolicyT", bound=Scorer)
M = TypeVar("M", bound=Optimiser)
R = TypeVar("R", bound=FrozenPolicy)


class BatchLearner(ABC, Generic[PolicyT, M, R]):
    """Learns from batches. Those that derive from it make the three parts: what scores, what moves, what stays."""

    policy: PolicyT
    optimisation: M
    reference: R | None

    def __init__(self, config: RunConfig, *, processes: ProcessGroup, packer: Packer, replayer: Replayer) -> None:
        self._config = config
        self._processes = processes
        self._packer = packer
        self._replayer = replayer
        self._weights = Weights(version=0)
        self._spoilt_in_a_row = 0

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        """What the objective must know of trajectories before it learns from them."""
        return await in_torch_thread(self._read, trajectories)

    async def update(self, batch: Batch) -> Update:
        """Learn from a batch and write the next version of the weights."""
        return await in_torch_thread(self._update, batch)

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        """The policy's logprob of every sampled token, forced ones too, and 0 elsewhere; one column a trajectory.

        Each token is scored as an update scores it: at the temperature and under the grammar it was sampled with.
        """
        examples = plain_examples(trajectories, [t.sampled for t in trajectories])
        return (await in_torch_thread(self._survey, self.policy, examples))[0]

    @abstractmethod
    def _write_weights(self, version: int) -> Weights:
        """Give what was learnt its version, for the sampler to take up."""

    def _read(self, trajectories: Sequence[Trajectory]) -> Readings:
        algorithm = self._config.algorithm
        masks = [scored_tokens(t, learnable_tokens(t, algorithm.masks)) for t in trajectories]
        examples = plain_examples(trajectories, masks)
        logprobs = values = reference_logprobs = None
        if algorithm.old_logprobs == "recomputed" or algorithm.has_critic:
            logprobs, values = self._survey(self.policy, examples)
        if self.reference is not None:
            with self.reference.in_place() as reference:
                reference_logprobs = self._survey(reference, examples)[0]
        return Readings(
            logprobs=logprobs if algorithm.old_logprobs == "recomputed" else None,
            reference_logprobs=reference_logprobs,
            values=values,
        )

    @torch.no_grad()
    def _survey(self, policy: Scorer, examples: Sequence[Example]) -> tuple[Columns, Columns | None]:
        """Logprobs of the scored tokens, and values before them; without a value head None."""
        found: dict[int, tuple[tuple[float, ...], tuple[float, ...] | None]] = {}
        for chosen in self._processes.own(self._packer.divide(examples)):
            pack = self._packer.pack([examples[i] for i in chosen or (0,)])
            scores = policy(pack)
            for place, i in enumerate(chosen or ()):
                own_N = pack.sequence_N == place
                logprobs = tuple(floats(examples[i].on_tokens(scores.logprob_N[own_N])))
                values = None
                if scores.value_N is not None:
                    values = tuple(floats(examples[i].on_tokens(scores.value_N[own_N])))
                found[i] = (logprobs, values)
        for part in self._processes.gather(found):
            found |= part
        columns = [found[i] for i in range(len(examples))]
        values = tuple(column[1] for column in columns if column[1] is not None)
        return tuple(column[0] for column in columns), values if len(values) == len(columns) else None

    def _update(self, batch: Batch) -> Update:
        started, replayed_s = time.monotonic(), self._replayer.spent_s
        rate = self.optimisation.learning_rate
        known = {
            "learnable_tokens": float(sum(map(sum, batch.learnable))),
            **mask_shares(batch.trajectories, batch.learnable),
            **staleness_metrics(batch.trajectories, self._weights.version),
        }
        spoilt_before = self._spoilt_in_a_row
        metrics, ratios, skipped = self._learn_from(batch, known)
        if skipped is None:
            self._weights = self._write_weights(self._weights.version + 1)
        metrics |= {
            **known,
            "learning_rate": rate,
            "update_skipped": float(skipped is not None),
            "nonfinite": float(self._spoilt_in_a_row > spoilt_before),
            "nonfinite_in_a_row": float(self._spoilt_in_a_row),
            "replay_s": self._replayer.spent_s - replayed_s,
            "update_s": time.monotonic() - started,
        }
        return Update(step=batch.step, weights=self._weights, metrics=metrics, ratios=ratios, skipped=skipped)

    def _learn_from(self, batch: Batch, known: Mapping[str, float]) -> tuple[dict[str, float], Columns, str | None]:
        """Move the policy: the metrics of that, the ratios that were seen, and, where it did not move, why."""
        nothing_seen = tuple((0.0,) * len(t.token_ids) for t in batch.trajectories)
        rate = self.optimisation.learning_rate
        reason = self._too_little(known["learnable_tokens"], known["learnable_share"])
        if reason is not None:
            return {}, nothing_seen, reason
        try:
            parts = self.policy, self.optimisation, self._packer, self._processes
            tally = make_update(batch, self._config, *parts, version=self._weights.version)
        except NonFiniteValues as fault:
            return {}, nothing_seen, self._note_spoilt(str(fault))
        self._spoilt_in_a_row = 0
        metrics = {**tally.metrics(self._config.algorithm), **self._follow(batch, tally)}
        ratios = tally.ratios_of(batch.trajectories)
        if tally.undone:
            return metrics, ratios, self._why_undone(tally, rate)
        if tally.steps_made:
            return metrics, ratios, None
        if tally.steps_over_cap:
            return metrics, ratios, "every optimiser step was beyond algorithm.kl.cap"
        return metrics, ratios, "in no group does one reward differ from another: there is nothing to learn"

    def _why_undone(self, tally: UpdateMetrics, rate_before: float) -> str:
        rate, cap = self.optimisation.learning_rate, self._config.algorithm.kl.cap
        return (
            f"the update moved the policy by {tally.moved:.2g} nats per token, to {tally.distance:.2g} from its "
            f"reference; algorithm.kl.cap is {cap:g}, so it was undone"
            + (f", and the learning rate is halved to {rate:.2g} from now on" if rate < rate_before else "")
        )

    def _too_little(self, tokens: float, share: float) -> str | None:
        algorithm = self._config.algorithm
        least_tokens = algorithm.min_learnable_tokens
        if tokens < least_tokens:
            return (
                f"{tokens:.0f} tokens are learnable, algorithm.min_learnable_tokens is {least_tokens}; "
                f"sampling.constrain {self._config.sampling.constrain} with masks {algorithm.masks} left no more"
            )
        if share < algorithm.min_learnable_share:
            least = algorithm.min_learnable_share
            return f"{share:.0%} of the sampled tokens are learnable, algorithm.min_learnable_share is {least:.0%}"
        return None

    def _note_spoilt(self, what: str) -> str:
        self._spoilt_in_a_row += 1
        if self._spoilt_in_a_row >= _MAX_NON_FINITE_IN_A_ROW:
            raise NonFiniteError(
                f"{self._spoilt_in_a_row} updates in a row met something that is no number, the last one: {what}; "
                "the weights are those of before them",
                fix="look at the episodes named; lower learner.learning_rate, or use model.dtype float32",
            )
        return what

    def _follow(self, batch: Batch, tally: UpdateMetrics) -> dict[str, float]:
        """The reference moves as configured, where the policy did. Metrics of what goes along with an update."""
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


class Learner(Protocol):
    """Holds the policy and moves it."""

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        """What the objective must know of trajectories before it learns from them."""
        ...

    async def update(self, batch: Batch) -> Update:
        """Learn from a batch and write the next version of the weights."""
        ...

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        """The policy's logprob of every sampled token, and 0 elsewhere; one column a trajectory."""
        ...

    async def save_state(self, folder: Path) -> None:
        """Write all that the next update depends on into an existing folder, as safetensors and JSON.

        The caller makes the files durable.
        """
        ...

    async def load_state(self, folder: Path) -> Weights:
        """Become what `save_state` wrote. The version of the weights it held, written for the sampler again.

        Raises OtherStateError where it was written under settings that do not fit.
        """
        ...

    async def fetch(self, weights: Weights) -> Weights:
        """The newest weights, in files on this machine."""
        ...

    async def state_bytes(self) -> int:
        """How large the files of `save_state` will be, once an update has been made."""
        ...


@asynccontextmanager
async def open_learner(
    config: RunConfig, *, folder: Path, grammars: Grammars | None, engine: SkyrlEngine | None = None
) -> AsyncGenerator[Learner]:
    """The learner of a run: behind the engine's API, in this process, or in several of its own.

    `folder` gets the versions of its weights.
    """
    if engine is not None:
        from mcprl.learning.skyrl_learner import SkyrlLearner

        yield await SkyrlLearner.open(config, engine, folder=folder)
        return
    if config.learner.processes > 1:
        from mcprl.learning.distributed import DistributedLearner

        async with DistributedLearner(config, folder=folder, grammars=grammars) as learner:
            yield learner
        return
    from mcprl.learning.torch_learner import TorchLearner

    yield await in_torch_thread(TorchLearner, config, folder=folder, grammars=grammars)
