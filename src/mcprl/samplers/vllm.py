"""Samples through a vLLM server in a separate process. Its weights can change while turns are being sampled.

If adapters are trained, a turn keeps the version that it began with, and the next turn uses the current version. If all
weights are trained, or adapters are merged into them, a turn continues with the new weights.

A turn depends only on its request and the weights. If the server dies, `SupervisedVllm` starts another one with the
current weights, and the lost turns are requested again. Callers only wait longer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers.model_folder import check_files
from mcprl.samplers.routing import Router
from mcprl.samplers.sampler import Completion, Receiver, SampleRequest
from mcprl.samplers.vllm_server import (
    BASE_NAME,
    GENERATE_PATH,
    MAX_ADAPTERS,
    START_S,
    ServerPlan,
    SupervisedVllm,
    VllmProcess,
    generate_body,
    read_completion,
    replaces_weights,
    transfer_backend,
)

Send = Callable[[Receiver], Awaitable[int]]
"""Lets the learner send its weights to a server. Returns their version."""


def adapter_name(weights: Weights) -> str:
    """Return the server's name for these weights.

    >>> adapter_name(Weights(version=0))
    'base'
    """
    return BASE_NAME if weights.adapter is None else f"v{weights.version}"


class Adapters:
    """The adapters that are loaded in the current server. After a restart, `restore` must be called."""

    def __init__(self) -> None:
        self._mark = ""
        self._names: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._turn_ended = asyncio.Event()

    @contextmanager
    def in_use(self, weights: Weights) -> Generator[str]:
        """Use `weights` for a turn. They stay loaded until the turn ends."""
        name = self._name(weights)
        self._turns[name] += 1
        try:
            yield name
        finally:
            self._turns[name] -= 1
            self._turn_ended.set()

    def _name(self, weights: Weights) -> str:
        return adapter_name(weights) if weights.adapter is None else f"{self._mark}{adapter_name(weights)}"

    async def load(self, server: VllmProcess, weights: Weights, *, in_force: Weights) -> None:
        """Load `weights` into the server once there is a free slot. The current weights, `in_force`, stay loaded."""
        name = self._name(weights)
        if weights.adapter is None or name in self._names:
            return
        while len(self._names) >= MAX_ADAPTERS:
            self._turn_ended.clear()
            await self.unload_idle(server, in_force=in_force)
            if len(self._names) >= MAX_ADAPTERS:
                await self._turn_ended.wait()
        await server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(weights.adapter.resolve())})
        self._names.add(name)

    async def unload_idle(self, server: VllmProcess, *, in_force: Weights) -> None:
        """Unload adapters that no turn uses, except the current one."""
        for name in sorted(self._names - {self._name(in_force)}):
            if not self._turns[name]:
                await server.post("/v1/unload_lora_adapter", {"lora_name": name})
                self._names.discard(name)

    async def restore(self, server: VllmProcess, in_force: Weights) -> None:
        """Load the current weights into a server that was just started."""
        self._names.clear()
        if server.is_elsewhere:
            # It may still have the adapters of an earlier run, or cached tokens of them, under the usual names.
            self._mark = f"{secrets.token_hex(4)}-"
        await self.load(server, in_force, in_force=in_force)


# Requests in flight continue afterwards, but their KV cache is dropped.
_PAUSE = "/pause?mode=keep&clear_cache=true"


async def check_whole_weights(server: VllmProcess, folder: Path | None, *, started_with: str) -> None:
    """Raise BadValueError if the model in `folder` is incomplete, or not the one that the server was started with."""
    if folder is None:
        return
    check_files(folder)
    differences = await _ask_workers(server, "compare_model_folder", folder=folder)
    if differences:
        raise BadValueError(
            f"{folder} contains a different model than {started_with}: {'; '.join(differences)}",
            fix="use weights of the model that model.path names",
        )


async def put_whole_weights(
    server: VllmProcess, weights: Weights, *, asleep: bool = False, send: Callable[[], Awaitable[int]] | None = None
) -> None:
    """Switch the server to `weights`. If that fails, the server is killed, because it may mix old and new layers.

    Weights that are not in a folder come from the learner through `send`. It may send newer weights than these.
    A server that is `asleep` samples nothing, and must not be resumed.
    """
    try:
        if not asleep:
            await server.post(_PAUSE, {})
        version, objections = weights.version, list[str]()
        if send is not None and version and weights.model is None and weights.adapter is None:
            version = await send()
        else:
            objections = await _ask_workers(server, "load_model_folder", folder=weights.model, adapter=weights.adapter)
        if objections:
            source = weights.model or weights.adapter or "the initial weights"
            raise BadValueError(
                f"vLLM cannot sample from {source}: {'; '.join(objections[:3])}",
                fix="make the learner write all weights, and restart from the last checkpoint",
            )
        await server.post("/update_weight_version", {"new_version": str(version)})
        if not asleep:
            await server.post("/resume", {})
    except BaseException:  # including cancellation
        server.kill()
        raise


async def _ask_workers(server: VllmProcess, method: str, **folders: Path | None) -> list[str]:
    """Call a method of `mcprl.samplers.vllm_worker` in all workers. Return their objections."""
    given = {name: None if folder is None else str(folder.resolve()) for name, folder in folders.items()}
    answer = await server.post("/collective_rpc", {"method": method, "kwargs": given})
    return sorted({objection for worker in answer["results"] for objection in worker["objections"]})


_AS_STARTED = Weights(version=0)
_ONE_SERVER = Placement()
_REACH_S = 60.0  # for the first answer of a server that already runs


class Replica:
    """A vLLM server that runs inside the `async with` block, and is restarted if it dies."""

    def __init__(self, plan: ServerPlan) -> None:
        sampling, learner = plan.sampling, plan.learner
        self._plan = plan
        self._whole = replaces_weights(sampling, learner)
        self._backend = transfer_backend(sampling, learner, in_turns=plan.placement.in_turns)
        self.send: Send | None = None
        self._weights = _AS_STARTED
        self._adapters = Adapters()
        self._publishing = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()
        self._asleep: VllmProcess | None = None
        self._servers = SupervisedVllm(self._start, self._restore)

    async def __aenter__(self) -> Replica:
        await self._servers.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._servers.__aexit__()

    @property
    def pid(self) -> int:
        """Return the process id of the running server. Raises SamplerLostError if none is running."""
        return self._servers.running.pid

    @property
    def socket(self) -> Path:
        """Return the Unix socket of the running server. Raises SamplerLostError if none is running."""
        return self._servers.running.socket

    @property
    def restarts(self) -> int:
        """Return how often the server was restarted."""
        return self._servers.restarts

    @property
    def is_up(self) -> bool:
        """Return whether a server is running."""
        return self._servers.is_up

    @property
    def is_over(self) -> bool:
        """Return whether the server is down and will not be restarted."""
        return self._servers.is_over

    async def ready(self) -> None:
        """Wait until a server is running. Raises SamplerLostError if it will not be restarted."""
        await self._servers.ready()

    async def sample(self, request: SampleRequest) -> Completion | None:
        """Sample a turn. Returns None if the server died meanwhile."""
        server, weights = self._servers.running, self._weights
        with self._adapters.in_use(_AS_STARTED if self._whole else weights) as name:
            try:
                answer = await server.post(GENERATE_PATH, generate_body(request, name))
            except SamplerLostError:
                if server.may_be_asked:
                    raise
                return None
        self._servers.note_turn()
        completion = read_completion(answer, request, None if self._whole else weights.version)
        if server.is_elsewhere and completion.weights_versions[-1] < weights.version:
            server.kill()  # it was restarted by somebody else, and has the weights that it was started with
            return None
        return completion

    async def publish(self, weights: Weights) -> None:
        """Load `weights` and sample from them. If the server dies meanwhile, the next one loads them."""
        async with self._publishing:
            tries = 0
            while weights != self._weights:
                server = await self._servers.ready()
                tries += 1
                try:
                    await self._put_in_force(server, weights)
                except SamplerLostError:
                    # If the same weights crash several servers, give up, even if turns were sampled in between.
                    if server.may_be_asked or tries > self._servers.MAX_RESTARTS:
                        raise

    async def sleep(self) -> None:
        """Free the GPU. No turn may be in flight. If the server dies, `wake` starts the next one.

        Sleep level 1 keeps the weights in main memory. Level 2 drops them, because `wake` loads all weights again.
        """
        try:
            server = await self._servers.ready()
        except SamplerLostError:
            return
        self._awake.clear()
        self._asleep = server
        try:
            await server.post(f"/sleep?level={2 if self._whole else 1}", {})
        except SamplerLostError:
            server.kill()  # so that its memory is free in any case

    async def wake(self, weights: Weights) -> None:
        """Take the GPU back, with these weights."""
        server, self._asleep = self._asleep, None
        if server is not None and server.may_be_asked:
            try:
                await server.post("/wake_up?tags=weights", {})
                if self._whole:
                    await check_whole_weights(server, weights.model, started_with=self._plan.model.path)
                    await self._put_whole(server, weights, asleep=True)
                    self._weights = weights
                await server.post("/wake_up?tags=kv_cache", {})
            except SamplerLostError:
                server.kill()
        self._awake.set()
        await self.publish(weights)

    async def _put_in_force(self, server: VllmProcess, weights: Weights) -> None:
        if self._whole:
            await check_whole_weights(server, weights.model, started_with=self._plan.model.path)
            await self._put_whole(server, weights)
        else:
            await self._adapters.load(server, weights, in_force=self._weights)
        if not server.may_be_asked:
            return  # the next server starts with the current weights
        self._weights = weights
        if not self._whole:
            await self._adapters.unload_idle(server, in_force=weights)

    async def _start(self) -> VllmProcess:
        await self._awake.wait()  # meanwhile the learner has the GPU
        if self._plan.placement.urls:
            return await VllmProcess.reach(self._plan, within_s=START_S if self.restarts else _REACH_S)
        return await VllmProcess.start(self._plan)

    async def _restore(self, server: VllmProcess) -> None:
        if not self._whole:
            await self._adapters.restore(server, self._weights)
        elif self._weights != _AS_STARTED:
            await self._put_whole(server, self._weights)

    async def _put_whole(self, server: VllmProcess, weights: Weights, *, asleep: bool = False) -> None:
        send, backend = self.send, self._backend
        if send is None or backend is None:
            await put_whole_weights(server, weights, asleep=asleep)
            return
        receiver = Receiver(socket=server.socket, backend=backend, workers=self._plan.placement.tensor_parallel)
        await put_whole_weights(server, weights, asleep=asleep, send=lambda: send(receiver))


class VllmSampler:
    """Samples through one or several replicas that run inside the `async with` block.

    If a replica dies, its turns go to another one, or wait until one is restarted; that time does not count towards the
    turn's deadline. A replica that will not be restarted is left out. If no replica is left, the SamplerLostError of
    the last one is raised.
    """

    def __init__(
        self,
        model: ModelConfig,
        sampling: SamplingConfig,
        learner: LearnerConfig,
        *,
        max_sequences: int,
        turn_deadline_s: float,
        log: Path,
        placement: Placement = _ONE_SERVER,
        group_size: int = 8,
    ) -> None:
        count = len(placement.urls or placement.replicas)
        share = min(max_sequences, -(-max_sequences // count) + group_size)

        def replica(number: int) -> Replica:
            plan = ServerPlan(
                model=model,
                sampling=sampling,
                learner=learner,
                max_sequences=share,
                placement=placement,
                number=number,
                turn_deadline_s=turn_deadline_s,
                log=log if number == 0 else log.with_stem(f"{log.stem}-{number + 1}"),
            )
            return Replica(plan)

        self.replicas = tuple(map(replica, range(count)))
        self._learner = learner
        self._router = Router(replicas=count, slack=group_size)
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> VllmSampler:
        async with AsyncExitStack() as opening:
            await asyncio.gather(*(opening.enter_async_context(replica) for replica in self.replicas))
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    @property
    def restarts(self) -> int:
        """Return how often a replica was restarted."""
        return sum(replica.restarts for replica in self.replicas)

    async def sample(self, request: SampleRequest) -> Completion:
        while True:
            up = [number for number, replica in enumerate(self.replicas) if replica.is_up]
            if not up:
                await self._wait_for_a_replica()
                continue
            with self._router.turn(request.prompt_ids, among=up) as chosen:
                completion = await self.replicas[chosen].sample(request)
            if completion is not None:
                return completion
            self._router.forget(chosen)

    async def publish(self, weights: Weights) -> Weights:
        """Load `weights` into all replicas and sample from them. Waits for replicas that are being restarted.

        Turns in flight continue. If too many adapters are loaded, this waits until the turns of one of them have ended.
        """
        unfit = weights.adapter if self._learner.tuning == "full" else weights.model
        if unfit is not None:
            raise BadValueError(
                f"vLLM was started for learner.tuning={self._learner.tuning} and cannot load the weights in {unfit}",
                fix="set learner.tuning to match the weights: lora for an adapter, full for a full model",
            )
        results = await asyncio.gather(*(replica.publish(weights) for replica in self.replicas), return_exceptions=True)
        taken = results.count(None)
        for replica, fault in zip(self.replicas, results, strict=True):
            if fault is not None and not (taken and replica.is_over):
                raise fault
        for number in range(len(self.replicas)):
            self._router.forget(number)  # what was cached belongs to the old weights
        return weights

    def receive_from(self, send: Send) -> None:
        """From now on, weights that are not in a folder come from the learner, through `send`."""
        for replica in self.replicas:
            replica.send = send

    async def sleep(self) -> None:
        """Free the GPUs for the learner. No turn may be in flight until `wake`."""
        await asyncio.gather(*(replica.sleep() for replica in self.replicas))

    async def wake(self, weights: Weights) -> Weights:
        """Take the GPUs back, and sample from `weights`."""
        await asyncio.gather(*(replica.wake(weights) for replica in self.replicas))
        return await self.publish(weights)

    async def _wait_for_a_replica(self) -> None:
        waiting = [asyncio.create_task(replica.ready()) for replica in self.replicas]
        try:
            for number, first in enumerate(asyncio.as_completed(waiting), start=1):
                try:
                    return await first
                except SamplerLostError:
                    if number == len(waiting):
                        raise
        finally:
            for task in waiting:
                task.cancel()
