"""Samples through a vLLM server in a separate process. Its weights can change while turns are being sampled.

If adapters are trained, a turn keeps the version that it began with, and the next turn uses the current version. If all
weights are trained, or adapters are merged into them, a turn continues with the new weights.

A turn depends only on its request and the weights. If the server dies, `SupervisedVllm` starts another one with the
current weights, and the lost turns are requested again. Callers only wait longer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig, SamplerPlacement, SamplingConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights
from mcprl.samplers.model_folder import check_files
from mcprl.samplers.routing import Router
from mcprl.samplers.sampler import Completion, SampleRequest
from mcprl.samplers.vllm_server import (
    BASE_NAME,
    GENERATE_PATH,
    MAX_ADAPTERS,
    SupervisedVllm,
    VllmProcess,
    generate_body,
    read_completion,
    replaces_weights,
)


def adapter_name(weights: Weights) -> str:
    """Return the server's name for these weights.

    >>> adapter_name(Weights(version=0))
    'base'
    """
    return BASE_NAME if weights.adapter is None else f"v{weights.version}"


class Adapters:
    """The adapters that are loaded in the current server. After a restart, `restore` must be called."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._turn_ended = asyncio.Event()

    @contextmanager
    def in_use(self, weights: Weights) -> Generator[str]:
        """Use `weights` for a turn. They stay loaded until the turn ends."""
        name = adapter_name(weights)
        self._turns[name] += 1
        try:
            yield name
        finally:
            self._turns[name] -= 1
            self._turn_ended.set()

    async def load(self, server: VllmProcess, weights: Weights, *, in_force: Weights) -> None:
        """Load `weights` into the server once there is a free slot. The current weights, `in_force`, stay loaded."""
        name = adapter_name(weights)
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
        for name in sorted(self._names - {adapter_name(in_force)}):
            if not self._turns[name]:
                await server.post("/v1/unload_lora_adapter", {"lora_name": name})
                self._names.discard(name)

    async def restore(self, server: VllmProcess, in_force: Weights) -> None:
        """Load the current weights into a server that was just started."""
        self._names.clear()
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
            fix="publish weights of the model in model.path",
        )


async def put_whole_weights(server: VllmProcess, weights: Weights) -> None:
    """Switch the server to `weights`. If that fails, it is killed, because it may have layers of both versions."""
    try:
        await server.post(_PAUSE, {})
        objections = await _ask_workers(server, "load_model_folder", folder=weights.model, adapter=weights.adapter)
        if objections:
            raise BadValueError(
                f"vLLM cannot sample from {weights.model or weights.adapter}: {'; '.join(objections[:3])}",
                fix="make the learner write all weights, and restart from the last checkpoint",
            )
        await server.post("/update_weight_version", {"new_version": str(weights.version)})
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
_ONE_SERVER = SamplerPlacement()


class Replica:
    """A vLLM server that runs while this context is entered, and is restarted if it dies.

    A request that a live server does not answer within `turn_deadline_s` is lost.
    """

    def __init__(
        self,
        model: ModelConfig,
        sampling: SamplingConfig,
        learner: LearnerConfig,
        *,
        max_sequences: int,
        devices: Sequence[int],
        turn_deadline_s: float,
        log: Path,
    ) -> None:
        self._max_sequences = max_sequences
        self._devices = devices
        self._turn_deadline_s = turn_deadline_s
        self._model = model
        self._sampling = sampling
        self._learner = learner
        self._log = log
        self._whole = replaces_weights(sampling, learner)
        self._weights = _AS_STARTED
        self._adapters = Adapters()
        self._publishing = asyncio.Lock()
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
        """Return whether no server is running and none will be started again."""
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
        return read_completion(answer, request, None if self._whole else weights.version)

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

    async def _put_in_force(self, server: VllmProcess, weights: Weights) -> None:
        if self._whole:
            await check_whole_weights(server, weights.model, started_with=self._model.path)
            await put_whole_weights(server, weights)
        else:
            await self._adapters.load(server, weights, in_force=self._weights)
        if not server.may_be_asked:
            return  # the next server starts with the current weights
        self._weights = weights
        if not self._whole:
            await self._adapters.unload_idle(server, in_force=weights)

    async def _start(self) -> VllmProcess:
        return await VllmProcess.start(
            self._model,
            self._sampling,
            self._learner,
            max_sequences=self._max_sequences,
            devices=self._devices,
            turn_deadline_s=self._turn_deadline_s,
            log=self._log,
        )

    async def _restore(self, server: VllmProcess) -> None:
        if not self._whole:
            await self._adapters.restore(server, self._weights)
        elif self._weights != _AS_STARTED:
            await put_whole_weights(server, self._weights)


class VllmSampler:
    """Samples through one or several replicas that run while this context is entered.

    If a replica dies, its turns go to another one, or wait until one is restarted; that time does not count towards the
    turn's deadline. A replica that is not restarted any more is left out. If it was the last one, its SamplerLostError
    is raised.
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
        placement: SamplerPlacement = _ONE_SERVER,
        group_size: int = 8,
    ) -> None:
        share = min(max_sequences, -(-max_sequences // placement.replicas) + group_size)

        def replica(number: int) -> Replica:
            return Replica(
                model,
                sampling,
                learner,
                max_sequences=share,
                devices=placement.devices_of(number),
                turn_deadline_s=turn_deadline_s,
                log=log if number == 0 else log.with_stem(f"{log.stem}-{number + 1}"),
            )

        self.replicas = tuple(map(replica, range(placement.replicas)))
        self._learner = learner
        self._router = Router(replicas=placement.replicas, slack=group_size)
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

        Turns in flight continue. If too many adapters are loaded, this waits until the turns of an old one have ended.
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
