"""The `Learner` protocol, and `open_learner`, which opens one of its three implementations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from mcprl.config import RunConfig
from mcprl.placement import gpu_memories, place
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars
    from mcprl.skyrl.engine import SkyrlEngine

P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="torch")


async def in_torch_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in the only thread that uses torch, after all work that was submitted before."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *args, **kwargs))


class Learner(Protocol):
    """Holds the policy and updates it."""

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        """Compute what the objective needs to know about trajectories before the update."""
        ...

    async def update(self, batch: Batch) -> Update:
        """Update the policy with a batch and write the next version of the weights."""
        ...

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        """Return the policy's logprob of every sampled token, 0 for other tokens: one column per trajectory.

        Forced tokens count as sampled. Each token is scored as in an update: at the temperature and under the grammar
        that it was sampled with.
        """
        ...

    async def save_state(self, folder: Path) -> None:
        """Write everything that the next update depends on into an existing folder, as safetensors and JSON.

        Call this between updates only. The caller must fsync the files.
        """
        ...

    async def load_state(self, folder: Path) -> Weights:
        """Restore what `save_state` wrote, write the restored weights for the sampler again, and return them.

        Raises OtherStateError if the state was saved under settings that do not fit the current ones.
        """
        ...

    async def fetch(self, weights: Weights) -> Weights:
        """Make sure that the newest weights are in files on this machine. Returns the weights with their folder."""
        ...

    async def state_bytes(self) -> int:
        """Return the size of the files that `save_state` writes after the first update, summed over all processes."""
        ...


class Receiver(Protocol):
    """A server that receives weights. It is pickled for each process of the learner."""

    def receive(self, model: Any, tensors: Callable[[], Iterator[Any]], *, device: Any, dtype: Any, rank: int) -> None:
        """Receive the parameters of a model. `tensors` yields them whole, with their names. Each process calls this."""
        ...


class OnGpu(Protocol):
    """A torch learner, which can leave its GPUs to the sampler. While off them, it only saves, loads and sends."""

    async def leave_gpu(self) -> None:
        """Move the weights and the optimizer's state to main memory, and return the GPU memory to the driver."""
        ...

    async def return_to_gpu(self) -> None: ...

    async def send(self, receiver: Receiver) -> int:
        """Send the current weights to a vLLM server. Returns their version."""
        ...


@asynccontextmanager
async def open_learner(
    config: RunConfig, *, folder: Path, grammars: Grammars | None, engine: SkyrlEngine | None = None
) -> AsyncGenerator[Learner]:
    """Open the learner of a run: on the server of `engine`, in this process, or in several processes.

    The learner writes the versions of its weights to `folder`.
    """
    if engine is not None:
        from mcprl.learning.skyrl_learner import SkyrlLearner

        yield await SkyrlLearner.open(config, engine, folder=folder)
        return
    gpus = place(config, len(gpu_memories())).learner
    if config.learner.processes > 1:
        from mcprl.learning.distributed import DistributedLearner

        async with DistributedLearner(config, folder=folder, grammars=grammars, gpus=gpus) as learner:
            yield learner
        return
    from mcprl.learning.torch_learner import TorchLearner

    yield await in_torch_thread(TorchLearner, config, folder=folder, grammars=grammars, gpu=gpus[0] if gpus else None)
