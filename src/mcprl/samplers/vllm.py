"""Samples through a vLLM server in a separate process. Its weights can change while turns are being sampled.

If adapters are trained, a turn keeps the version that it began with, and the next turn uses the current version. If all
weights are trained, or adapters are merged into them, a turn continues with the new weights.

A turn depends only on its request and the weights. If the server dies, `SupervisedVllm` starts another one with the
current weights, and the lost turns are requested again. Callers only wait longer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights
from mcprl.samplers.model_folder import check_files
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


class VllmSampler:
    """Samples through a vLLM server that runs while this context is entered, and is restarted if it dies.

    A request that a live server does not answer within `turn_deadline_s` is lost. The time spent waiting for a restart
    does not count; it is bounded by the time that a server has to start.
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
    ) -> None:
        self._max_sequences = max_sequences
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

    async def __aenter__(self) -> VllmSampler:
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

    async def sample(self, request: SampleRequest) -> Completion:
        while True:
            server = await self._servers.ready()
            weights = self._weights
            with self._adapters.in_use(_AS_STARTED if self._whole else weights) as name:
                try:
                    answer = await server.post(GENERATE_PATH, generate_body(request, name))
                except SamplerLostError:
                    if server.may_be_asked:
                        raise
                    continue
            self._servers.note_turn()
            return read_completion(answer, request, None if self._whole else weights.version)

    async def publish(self, weights: Weights) -> Weights:
        """Load `weights` and sample from them.

        Turns in flight continue. If too many adapters are loaded, this waits until the turns of an old one have ended.
        """
        unfit = weights.adapter if self._learner.tuning == "full" else weights.model
        if unfit is not None:
            raise BadValueError(
                f"vLLM was started for learner.tuning={self._learner.tuning} and cannot load the weights in {unfit}",
                fix="set learner.tuning to match the weights: lora for an adapter, full for a whole model",
            )
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
        return weights

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
            turn_deadline_s=self._turn_deadline_s,
            log=self._log,
        )

    async def _restore(self, server: VllmProcess) -> None:
        if not self._whole:
            await self._adapters.restore(server, self._weights)
        elif self._weights != _AS_STARTED:
            await put_whole_weights(server, self._weights)
