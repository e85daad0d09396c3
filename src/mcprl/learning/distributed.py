"""A learner in several processes. The run starts them, sends each request to all, and uses the response of rank 0.

If one process ends or fails, the others may wait for it forever. So all are killed, and the error names the one that
failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mcprl.config import RunConfig
from mcprl.errors import LearnerLostError, McprlError
from mcprl.placement import visible
from mcprl.processes import ChildProcess, private_folder
from mcprl.records import Batch, Columns, Readings, Trajectory, Update, Weights
from mcprl.secrets import HUB_VARIABLES, environment_without_keys

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars
    from mcprl.learning.learner import Receiver

SOCKET_VARIABLE = "MCPRL_LEARNER_SOCKET"
"""The environment variable that tells a process which socket to connect to."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a learner process needs to start. `constrained` is true if trajectories are sampled under grammars.

    The processes exchange their addresses through the file `rendezvous`, in a folder that only the user can access.

    Plan(config=…, folder=Path("outputs/hello/weights"), rendezvous=Path("/tmp/mcprl-x1/rendezvous"), constrained=True)
    """

    config: RunConfig
    folder: Path
    rendezvous: Path
    constrained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A process's response to a request: the result or the error. Only the first process sends results.

    Answer(result=Update(…), error=None)
    """

    result: Any = None
    error: McprlError | None = None


async def send(writer: StreamWriter, message: Any) -> None:
    """Send a pickled message after its length. Raises ConnectionError if the other side has closed the connection."""
    data = await asyncio.to_thread(pickle.dumps, message, pickle.HIGHEST_PROTOCOL)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    writer.write(data)
    await writer.drain()


async def receive(reader: StreamReader) -> Any:
    """Receive a message from `send`. Raises IncompleteReadError if the connection was closed."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    data = await reader.readexactly(length)
    return await asyncio.to_thread(pickle.loads, data)


_WORKER = (sys.executable, "-m", "mcprl.learning.worker")
# If one process fails, others fail as a consequence and may report first. Wait this long for the original error.
_BLAME_S = 2.0
_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class DistributedLearner:
    """Trains a policy in `learner.processes` processes that live as long as this context. See `Learner` for the
    methods.

    If `grammars` is not None, each process loads its own grammars. Versions of the weights are written to `folder`, and
    the output of the processes to `learner-RANK.log` next to it.
    """

    def __init__(self, config: RunConfig, *, folder: Path, grammars: Grammars | None, gpus: Sequence[int] = ()) -> None:
        self._gpus = {"CUDA_VISIBLE_DEVICES": visible(gpus)} if gpus else {}
        self._stack = contextlib.ExitStack()
        self._home = self._stack.enter_context(private_folder())
        self._plan = Plan(
            config=config,
            folder=folder.resolve(),
            rendezvous=self._home / "rendezvous",
            constrained=grammars is not None,
        )
        self._size = config.learner.processes
        self._processes: list[ChildProcess] = []
        self._lines: list[asyncio.Future[tuple[StreamReader, StreamWriter]]] = []
        self._server: asyncio.Server | None = None
        self._turn = asyncio.Lock()
        self._lost: McprlError | None = None

    async def __aenter__(self) -> DistributedLearner:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pids(self) -> list[int]:
        """The process ids, in the order of ranks."""
        return [process.pid for process in self._processes]

    async def read(self, trajectories: Sequence[Trajectory]) -> Readings:
        return await self._ask(("read", tuple(trajectories)))

    async def update(self, batch: Batch) -> Update:
        return await self._ask(("update", batch))

    async def score(self, trajectories: Sequence[Trajectory]) -> Columns:
        return await self._ask(("score", tuple(trajectories)))

    async def save_state(self, folder: Path) -> None:
        await self._ask(_with_folder("save_state", folder))

    async def load_state(self, folder: Path) -> Weights:
        return await self._ask(_with_folder("load_state", folder))

    async def fetch(self, weights: Weights) -> Weights:
        return await self._ask(("fetch", weights))

    async def send(self, receiver: Receiver) -> int:
        return await self._ask(("send", receiver))

    async def state_bytes(self) -> int:
        return await self._ask(("state_bytes",))

    async def leave_gpu(self) -> None:
        await self._ask(("leave_gpu",))

    async def return_to_gpu(self) -> None:
        await self._ask(("return_to_gpu",))

    async def close(self) -> None:
        """Stop all processes. It is safe to call this again."""
        for line in self._lines:
            if line.done() and not line.cancelled():
                line.result()[1].close()  # an idle process exits when its connection closes
        await asyncio.gather(*(process.stop() for process in self._processes))
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._stack.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._lines = [loop.create_future() for _ in range(self._size)]
        socket = self._home / "line"
        self._server = await asyncio.start_unix_server(self._meet, socket)
        shared = {
            **environment_without_keys(*HUB_VARIABLES),
            **self._gpus,
            # Each process gets a part of the cores. If each used all cores, they would only wait for one another.
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._size))),
            # All processes are on this machine, so no other machine may reach the ports that they open.
            "GLOO_SOCKET_IFNAME": _LOOPBACK,
            "NCCL_SOCKET_IFNAME": _LOOPBACK,
            "WORLD_SIZE": str(self._size),
            "LOCAL_WORLD_SIZE": str(self._size),
            SOCKET_VARIABLE: str(socket),
        }
        for rank in range(self._size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            log = self._plan.folder.parent / f"learner-{rank}.log"
            self._processes.append(await ChildProcess.start(_WORKER, env=shared | own, log=log))
        await self._ask(self._plan)

    async def _meet(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Handle the connection of a process, which first sends its rank."""
        rank: int = await receive(reader)
        self._lines[rank].set_result((reader, writer))

    async def _ask(self, message: Any) -> Any:
        """Send a message to all processes, wait for all responses, and return the result of rank 0."""
        async with self._turn:
            if self._lost is not None:
                raise LearnerLostError(
                    f"the learner's processes were stopped after an error: {self._lost.what}", fix=self._lost.fix
                )
            errors: list[McprlError] = []
            asked = [asyncio.create_task(self._ask_one(rank, message, errors)) for rank in range(self._size)]
            try:
                done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
                if errors:
                    await asyncio.wait(asked, timeout=_BLAME_S)
                    raise min(errors, key=_remoteness)
                for task in done:
                    task.result()
                return asked[0].result()
            except BaseException as error:
                # The request is half done, so it is unknown which weights the processes hold.
                self._lost = error if isinstance(error, McprlError) else _INTERRUPTED
                await self._abandon(asked)
                raise

    async def _ask_one(self, rank: int, message: Any, errors: list[McprlError]) -> Any:
        """Return the result of one process, or append its error to `errors` and raise it."""
        talk, end = asyncio.create_task(self._talk(rank, message)), asyncio.create_task(self._processes[rank].wait())
        try:
            await asyncio.wait((talk, end), return_when=asyncio.FIRST_COMPLETED)
            gone = not talk.done() or isinstance(talk.exception(), (ConnectionError, asyncio.IncompleteReadError))
            answer = Answer(error=await self._went_away(rank)) if gone else talk.result()
        finally:
            talk.cancel()
            end.cancel()
            await asyncio.gather(talk, end, return_exceptions=True)
        if answer.error is not None:
            errors.append(answer.error)
            raise answer.error
        return answer.result

    async def _talk(self, rank: int, message: Any) -> Answer:
        reader, writer = await self._lines[rank]
        await send(writer, message)
        return await receive(reader)

    async def _went_away(self, rank: int) -> LearnerLostError:
        process = self._processes[rank]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _BLAME_S)
        code = process.exit_code
        how = "closed its connection" if code is None else f"ended with exit code {code}"
        killed = "it was killed, probably because memory ran out: lower learner.tokens_per_pack, or see "
        return LearnerLostError(
            f"learner process {rank} of {self._size} {how}; the end of its log: {process.log_tail()}",
            fix=f"{killed if code == -signal.SIGKILL else 'see '}{process.log}",
        )

    async def _abandon(self, asked: Sequence[asyncio.Task[Any]]) -> None:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.gather(*(process.stop(grace_s=0.0) for process in self._processes))


_INTERRUPTED = LearnerLostError("the run stopped waiting for the learner's processes", fix="start the run again")


def _with_folder(method: str, folder: Path) -> tuple[str, Path]:
    return method, folder.resolve()


def _remoteness(error: McprlError) -> int:
    """Return how far an error is from the cause. Of several errors, the closest is reported.

    An error that a process raised says more than the end of a process. Among processes that ended, one that was killed
    by a signal is the likely cause.
    """
    if not isinstance(error, LearnerLostError):
        return 0
    return 1 if "exit code -" in error.what else 2
