"""One vLLM server for all tests of this process that need one, and not one of their own.

Starting it takes half a minute. A test borrows it: while `lent` is active, every VllmSampler of this process gets this
server instead of a new one, and gives it back as it was started. Tests about starting, dying or restarting start their
own. tests/conftest.py sends all files that borrow it to one process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig, VllmConfig
from mcprl.errors import McprlError
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers.vllm import put_whole_weights
from mcprl.samplers.vllm_server import ServerPlan, VllmProcess, server_argv

__all__ = ["MAX_SEQUENCES", "SharedVllm", "forwarded"]

MAX_SEQUENCES = 96
AS_STARTED = Weights(version=0)
ANSWER_S = 600.0  # only a hang takes so long
T = TypeVar("T")


class _InItsOwnLoop:
    """The server's process, asked from another event loop than the one it was started in."""

    def __init__(self, owner: SharedVllm, process: Any) -> None:
        self._owner = owner
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    async def wait(self) -> int:
        return await asyncio.wrap_future(self._owner.submit(self._process.wait()))

    async def ends_within(self, seconds: float) -> bool:
        return await asyncio.wrap_future(self._owner.submit(self._process.ends_within(seconds)))


class Borrowed(VllmProcess):
    """The shared server, asked from the event loop of one test. To stop it is to give it back."""

    def __init__(self, owner: SharedVllm, server: VllmProcess) -> None:
        process: Any = _InItsOwnLoop(owner, server._process)
        super().__init__(process, server.socket, deadline_s=ANSWER_S)
        self._owner = owner

    async def watch(self) -> int:
        return await self.wait()

    def kill(self) -> None:
        super().kill()
        raise AssertionError("a shared vLLM was killed: a test about dying starts a server of its own")

    async def stop(self) -> None:
        try:
            await self._owner.reset()
        except McprlError as error:  # a sampler that stops takes such an error for the end of its server
            raise AssertionError("the shared vLLM could not be reset") from error
        finally:
            await self._client.aclose()


@asynccontextmanager
async def forwarded(unix_socket: Path) -> AsyncGenerator[str]:
    """The address of a TCP port that leads to a Unix socket: an endpoint is a server that users reach by an address."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(unix_socket)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1"


@dataclass
class SharedVllm:
    """SmolLM2 in float32, started when it is first borrowed, by an event loop in a thread of its own."""

    model_path: Path
    log: Path
    starts: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _server: VllmProcess | None = None
    _reached: Any = VllmProcess.start

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared-vllm", daemon=True)
        self._thread.start()

    @property
    def model(self) -> ModelConfig:
        return ModelConfig(path=str(self.model_path), renderer="chatml", dtype="float32", context_tokens=2048)

    @property
    def sampling(self) -> SamplingConfig:
        # Merging, since layers that could take an adapter are slow.
        return SamplingConfig(vllm=VllmConfig(merge_adapters=True))

    def submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Run it in the server's own event loop; a future of its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @contextmanager
    def lent(self) -> Generator[None]:
        """While it is active, who starts a vLLM with these settings gets this one, and who starts another fails."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VllmProcess, "start", self._lend)
            yield

    async def _lend(self, plan: ServerPlan) -> VllmProcess:
        assert (len(plan.placement.replicas), plan.number) == (1, 0), "there is one shared vLLM"
        same: Any = {"max_sequences": MAX_SEQUENCES, "tensor_parallel": 1, "socket": Path()}
        wanted = server_argv(plan.model, plan.sampling, plan.learner, **same)
        shared = server_argv(self.model, self.sampling, LearnerConfig(), **same)
        assert wanted == shared, f"another vLLM than the shared one: {set(wanted) ^ set(shared)}"
        if self._server is None:
            own = ServerPlan(
                model=self.model,
                sampling=self.sampling,
                learner=LearnerConfig(),
                max_sequences=MAX_SEQUENCES,
                placement=Placement(),
                number=0,
                turn_deadline_s=ANSWER_S,
                log=self.log,
            )
            self._server = await asyncio.wrap_future(self.submit(self._reached(own)))
            self.starts += 1
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        plan.log.touch()
        return Borrowed(self, self._server)

    async def reset(self) -> None:
        """As it was started: its own weights, version 0, nothing cached, no request in flight, not paused."""
        assert self._server is not None
        await asyncio.wrap_future(self.submit(self._reset(self._server)))

    async def _reset(self, server: VllmProcess) -> None:
        await server.post("/pause?mode=abort&clear_cache=true", {})
        await put_whole_weights(server, AS_STARTED)

    def counted(self, metric: str) -> float:
        """The sum of a counter over all its labels, as the server's own /metrics has it."""
        assert self._server is not None
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(self._server.socket)), timeout=ANSWER_S) as client:
            text = client.get("http://vllm/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{metric}{{"))

    def close(self) -> None:
        if self._server is not None:
            self.submit(self._server.stop()).result(ANSWER_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
