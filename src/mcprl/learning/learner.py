"""The learner's interface, and the three kinds of it that `open_learner` opens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from mcprl.config import RunConfig
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars
    from mcprl.skyrl.engine import SkyrlEngine

__all__ = ["Learner", "in_torch_thread", "open_learner"]


P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="torch")


async def in_torch_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in the one thread that uses torch, after everything that was submitted before."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *args, **kwargs))


class Learner(Protocol):
    """Holds the policy and updates it."""

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        """What the objective needs to know about trajectories before it learns from them."""
        ...

    async def update(self, batch: Batch) -> Update:
        """Learn from a batch and write the next version of the weights."""
        ...

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        """The policy's logprob of every sampled token, forced ones too, and 0 elsewhere; one column per trajectory.

        Each token is scored as an update scores it: at the temperature and under the grammar it was sampled with.
        """
        ...

    async def save_state(self, folder: Path) -> None:
        """Write all that the next update depends on into an existing folder, as safetensors and JSON.

        Call it between updates only. The caller makes the files durable.
        """
        ...

    async def load_state(self, folder: Path) -> Weights:
        """Restore what `save_state` wrote. Returns its weights, written for the sampler again.

        Raises OtherStateError if it was written under settings that do not fit.
        """
        ...

    async def fetch(self, weights: Weights) -> Weights:
        """The newest weights, in files on this machine."""
        ...

    async def state_bytes(self) -> int:
        """How large the files of `save_state` will be after the first update, those of all processes together."""
        ...


@asynccontextmanager
async def open_learner(
    config: RunConfig, *, folder: Path, grammars: Grammars | None, engine: SkyrlEngine | None = None
) -> AsyncGenerator[Learner]:
    """The learner of a run: behind the engine's API, in this process, or in several processes.

    The versions of its weights are written to `folder`.
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
