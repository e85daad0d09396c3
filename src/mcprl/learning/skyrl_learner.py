"""A learner that makes the same updates as the torch learner, but computes them on a server (Tinker API)."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mcprl.config import KlConfig, RunConfig
from mcprl.errors import EngineLostError, OtherStateError
from mcprl.files import storage_faults
from mcprl.learning.algorithms.advantages import floats, ints
from mcprl.learning.algorithms.objective import Scores
from mcprl.learning.optimizer import learning_rate_share
from mcprl.learning.packing import Pack, Packer, Replayer
from mcprl.learning.process_group import ProcessGroup
from mcprl.learning.update import BatchLearner
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights
from mcprl.skyrl.client import AdamStep, ScoredRow
from mcprl.skyrl.engine import SkyrlEngine

_GRAD_NORM = "skyrl.ai/grad_norm"


@dataclass(frozen=True, slots=True)
class _Scored:
    """Rows that were scored with gradients, and the leaf tensor with the logprobs of their scored tokens.

    For each scored token, `row_N` is its row, and `before_N` is the position in that row of the token before it, whose
    logits predict it.
    """

    rows: tuple[tuple[int, ...], ...]
    row_N: Tensor
    before_N: Tensor
    logprob_N: Tensor

    def gradient_rows(self) -> list[ScoredRow]:
        """Return the rows that have a scored token, with the gradients that the server needs for its backward pass."""
        gradient_N = self.logprob_N.grad
        assert gradient_N is not None, "scored for training, but no backward pass followed"
        found: list[ScoredRow] = []
        for number, token_ids in enumerate(self.rows):
            own_N = self.row_N == number
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
    """Scores packs of padded rows on the server. Must not be called from the event loop's thread.

    The API does not report entropies. The negative logprob of the sampled token is used instead; its expectation is the
    entropy.
    """

    def __init__(self, engine: SkyrlEngine, *, is_reference: bool = False) -> None:
        self._engine = engine
        self._is_reference = is_reference
        self.scored: list[_Scored] = []

    def __call__(self, pack: Pack) -> Scores:
        id_X, width = pack.layout.token_id_BT.flatten(), pack.layout.token_id_BT.shape[1]
        rows = tuple(tuple(ints(id_X[place_T])) for place_T in pack.layout.places)
        columns = self._engine.from_thread(self._engine.score(rows, reference=self._is_reference))
        before_N = pack.before_N - pack.branch_N * width
        places = zip(ints(pack.branch_N), ints(before_N), strict=True)
        logprob_N = torch.tensor([columns[row][place] for row, place in places], dtype=torch.float32)
        entropy_N = -logprob_N
        if torch.is_grad_enabled():
            logprob_N.requires_grad_()
            self.scored.append(_Scored(rows, pack.branch_N, before_N, logprob_N))
        return Scores(logprob_N, entropy_N, None)


class RemoteOptimisation:
    """Adam on the server. The learning-rate schedule is computed here. `steps` is the number of steps made.

    `rate_factor` multiplies the scheduled rate. It is below 1 after updates that exceeded algorithm.kl.cap.
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
        return self._learner.learning_rate * self._share(self.steps) * self.rate_factor

    def forget_gradients(self) -> None:
        self._policy.scored.clear()  # gradients are sent only with the step

    def gradients_are_finite(self) -> Tensor:
        """Check the gradients of the logprobs. Non-finite gradients of weights show up in the norm after the step."""
        leaves = (one.logprob_N.grad for one in self._policy.scored)
        return torch.tensor(all(bool(grad.isfinite().all()) for grad in leaves if grad is not None))

    def step(self) -> float | None:
        rows = [row for one in self._policy.scored for row in one.gradient_rows()]
        adam = AdamStep(learning_rate=self.learning_rate)
        metrics = self._engine.from_thread(self._engine.learn(rows, adam))
        self._policy.scored.clear()
        self.steps += 1
        return metrics.get(_GRAD_NORM)

    def make_undo(self) -> Callable[[], None]:
        steps = self.steps

        def undo() -> None:
            self._policy.scored.clear()
            if self.steps != steps:
                self._engine.from_thread(self._engine.reload())
                self.steps = steps

        return undo

    def halve_rate(self) -> None:
        self.rate_factor /= 2


class RemoteReference:
    """A second adapter on the server: without effect (base model), or copied from the policy every `kl.lag` updates."""

    def __init__(self, engine: SkyrlEngine, kl: KlConfig) -> None:
        self._engine = engine
        self._kl = kl
        self.updates = 0

    @contextmanager
    def in_place(self) -> Generator[RemotePolicy]:
        yield RemotePolicy(self._engine, is_reference=True)

    def follow(self) -> dict[str, float]:
        self.updates += 1
        if self._kl.reference == "sync" and self.updates % self._kl.sync_every == 0:
            return {"reference_synced": 1.0, "reference_tensors_differing": float(self.become_policy())}
        return {"reference_synced": 0.0}

    def become_policy(self) -> int:
        self._engine.from_thread(self._engine.sync_reference())  # copies everything, or raises
        return 0


_STATE_FILE = "skyrl.json"
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILE = "adapter_model.safetensors"
# The server splits requests itself, so smaller requests would only be slower.
_TOKENS_IN_A_REQUEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """Everything that the next update depends on, apart from the server's state.

    _Progress(version=3, steps=6, rate_factor=1.0, non_finite_in_a_row=0, reference_updates=3)
    """

    version: int
    steps: int
    rate_factor: float
    non_finite_in_a_row: int
    reference_updates: int


class SkyrlLearner(BatchLearner[RemotePolicy, RemoteOptimisation, RemoteReference]):
    """Trains the adapter on a SkyRL server that the sampler uses too. Fetched adapters are written to `folder`.

    If the server dies during an update, the update is repeated from the previous version. The methods are described in
    `Learner`.
    """

    def __init__(self, config: RunConfig, engine: SkyrlEngine, *, folder: Path) -> None:
        processes = ProcessGroup(torch.device("cpu"))
        packer = Packer(Replayer(None), processes.device, tokens=_TOKENS_IN_A_REQUEST, share_prefix=False)
        super().__init__(config, processes=processes, packer=packer)
        self._engine = engine
        self._folder = folder
        self.policy = RemotePolicy(engine)
        self.optimisation = RemoteOptimisation(self.policy, engine, config)
        self.reference = RemoteReference(engine, config.algorithm.kl) if config.algorithm.kl.needs_reference else None

    @classmethod
    async def open(cls, config: RunConfig, engine: SkyrlEngine, *, folder: Path) -> SkyrlLearner:
        """Create a learner that uses an open engine, and its reference if it needs one."""
        learner = cls(config, engine, folder=folder)
        if learner.reference is not None:
            await engine.attempt(engine.open_reference)
        return learner

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        return await self._engine.attempt(lambda: super(SkyrlLearner, self).read(trajectories))

    async def update(self, batch: Batch) -> Update:
        before = self._progress()

        async def update() -> Update:
            self._restore(before)
            return await super(SkyrlLearner, self).update(batch)

        return await self._engine.attempt(update)

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        return await self._engine.attempt(lambda: super(SkyrlLearner, self).score(trajectories))

    async def save_state(self, folder: Path) -> None:
        """Make the server save its state, and delete the states that no checkpoint of the run needs."""
        state = await self._engine.attempt(self._engine.save)
        saved = {
            "resume_point": asdict(self._progress()),
            "state": state,
            "reference": self._engine.reference_state,
            "settings": self._settings(),
        }
        with storage_faults(f"writing the learner's state to {folder}"):
            (folder / _STATE_FILE).write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
            named = _states_named_in(folder.parent)
        await self._engine.keep_only(named)

    async def load_state(self, folder: Path) -> Weights:
        with storage_faults(f"reading the learner's state in {folder}"):
            if not (folder / _STATE_FILE).is_file():
                raise OtherStateError(
                    f"{folder} contains no state that engine=skyrl saved",
                    fix=("resume with the engine that the run started with"),
                )
            saved = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))
        before = saved["settings"].items()
        changed = [f"{name} was {value}" for name, value in before if value != self._settings()[name]]
        if changed:
            raise OtherStateError(
                f"the state in {folder} was saved with different settings: {'; '.join(changed)}",
                fix="resume with the settings that the run started with, or start a new run",
            )
        progress = _Progress(**saved["resume_point"])
        await self._engine.attempt(lambda: self._engine.become(progress.version, saved["state"], saved["reference"]))
        self._restore(progress)
        return self._weights

    async def fetch(self, weights: Weights) -> Weights:
        """Download the adapter of the newest weights, in the format that PEFT and vLLM read."""
        if weights.version != self._engine.version:
            raise ValueError(f"version {weights.version} is not the newest version, which is {self._engine.version}")
        archive = await self._engine.attempt(self._engine.download)
        target = self._folder / f"v{weights.version}"
        with storage_faults(f"writing {target}"):
            await asyncio.to_thread(_unpack, archive, target)
        return Weights(version=weights.version, adapter=target)

    async def state_bytes(self) -> int:
        """Return the size of the state, or 0 if the server, and so the state, is not on this machine."""
        return await asyncio.to_thread(self._engine.state_bytes)

    def _write_weights(self, version: int) -> Weights:
        self._engine.from_thread(self._engine.finish(version))
        return Weights(version=version)

    def _progress(self) -> _Progress:
        return _Progress(
            version=self._weights.version,
            steps=self.optimisation.steps,
            rate_factor=self.optimisation.rate_factor,
            non_finite_in_a_row=self._non_finite_in_a_row,
            reference_updates=0 if self.reference is None else self.reference.updates,
        )

    def _restore(self, progress: _Progress) -> None:
        self._weights = Weights(version=progress.version)
        self.optimisation.steps = progress.steps
        self.optimisation.rate_factor = progress.rate_factor
        self._non_finite_in_a_row = progress.non_finite_in_a_row
        if self.reference is not None:
            self.reference.updates = progress.reference_updates

    def _settings(self) -> dict[str, Any]:
        """Return the settings that a state on the server depends on."""
        config = self._config
        return {
            "model.path": config.model.path,
            "skyrl.backend": config.skyrl.backend,
            "skyrl.url": config.skyrl.url,
            "learner.lora_rank": config.learner.lora_rank,
            "algorithm.kl.reference": config.algorithm.kl.reference,
        }


def _states_named_in(checkpoints: Path) -> set[str]:
    """Return the server states that the checkpoints in a folder need, including unfinished checkpoints."""
    found: set[str] = set()
    for file in checkpoints.glob(f"*/{_STATE_FILE}"):
        saved = json.loads(file.read_text(encoding="utf-8"))
        found |= {saved["state"], *filter(None, [saved["reference"]])}
    return found


def _unpack(archive: bytes, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(target, filter="data")
        config = json.loads((target / _ADAPTER_CONFIG).read_text(encoding="utf-8"))
        with cast("Any", safe_open)(target / _ADAPTER_FILE, framework="pt") as tensors:
            names: list[str] = list(tensors.keys())
    except (tarfile.TarError, FileNotFoundError, json.JSONDecodeError, SafetensorError) as error:
        raise EngineLostError(
            f"the adapter that the server sent cannot be read: {error}", fix="read the server's log"
        ) from error
    # The server does not say which modules have an adapter, and PEFT needs this to load it.
    config["target_modules"] = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in names})
    (target / _ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
