"""What a run asks of a learner, and the learner that its configuration asks for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mcprl.config import RunConfig
from mcprl.learners.torch_thread import in_torch_thread
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights

if TYPE_CHECKING:
    from mcprl.chat.grammars import Grammars
    from mcprl.skyrl.engine import SkyrlEngine

__all__ = ["Learner", "open_learner"]


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
        from mcprl.learners.skyrl_learner import SkyrlLearner

        yield await SkyrlLearner.open(config, engine, folder=folder)
        return
    if config.learner.processes > 1:
        from mcprl.learners.spread_learner import SpreadLearner

        async with SpreadLearner(config, folder=folder, grammars=grammars) as learner:
            yield learner
        return
    from mcprl.learners.torch_learner import TorchLearner

    yield await in_torch_thread(TorchLearner, config, folder=folder, grammars=grammars)
