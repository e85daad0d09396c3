"""Sampling through a vLLM server in a process of its own, with weights that change while turns are being sampled.

Where adapters are trained, a turn ends under the version that it began with, and the next one begins under the version
in force (`vllm_adapters`). Where all weights are trained, or adapters are added to them, a turn goes on under the new
ones (`vllm_whole_weights`).

A turn depends on its request and on the weights alone. So when the server ends, by whatever cause, another one is
started and given the weights in force (`vllm_supervisor`), and the turns that were lost are asked for again: who waits
for one only waits longer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

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

__all__ = ["VllmSampler", "put_whole_weights"]


def adapter_name(weights: Weights) -> str:
    """What the server calls these weights.

    >>> adapter_name(Weights(version=0))
    'base'
    """
    return BASE_NAME if weights.adapter is None else f"v{weights.version}"


class Adapters:
    """Those of the server that runs now: `restore` begins anew with another."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._turn_ended = asyncio.Event()

    @contextmanager
    def in_use(self, weights: Weights) -> Generator[str]:
        """A turn under `weights`. Meanwhile their name stands."""
        name = adapter_name(weights)
        self._turns[name] += 1
        try:
            yield name
        finally:
            self._turns[name] -= 1
            self._turn_ended.set()

    async def load(self, server: VllmProcess, weights: Weights, *, in_force: Weights) -> None:
        """Have the server hold `weights` too, once there is a place for them. Those in force keep theirs."""
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
        """Take the names of adapters that no turn uses, nor will."""
        for name in sorted(self._names - {adapter_name(in_force)}):
            if not self._turns[name]:
                await server.post("/v1/unload_lora_adapter", {"lora_name": name})
                self._names.discard(name)

    async def restore(self, server: VllmProcess, in_force: Weights) -> None:
        """Have a server that was just started hold the weights in force, and no others."""
        self._names.clear()
        await self.load(server, in_force, in_force=in_force)


# Requests in flight are kept, and lose their keys and values.
_PAUSE = "/pause?mode=keep&clear_cache=true"


async def check_whole_weights(server: VllmProcess, folder: Path | None, *, started_with: str) -> None:
    """Raise BadValueError where `folder` is not all of the model that the server was started with."""
    if folder is None:
        return
    check_files(folder)
    differences = await _ask_workers(server, "compare_model_folder", folder=folder)
    if differences:
        raise BadValueError(
            f"{folder} holds another model than {started_with}: {'; '.join(differences)}",
            fix="publish weights of the model that model.path names",
        )


async def put_whole_weights(server: VllmProcess, weights: Weights) -> None:
    """Have the server go on with `weights`. Where that fails, some layers may be new and others old: it is ended."""
    try:
        await server.post(_PAUSE, {})
        objections = await _ask_workers(server, "load_model_folder", folder=weights.model, adapter=weights.adapter)
        if objections:
            raise BadValueError(
                f"vLLM cannot sample from {weights.model or weights.adapter}: {'; '.join(objections[:3])}",
                fix="have the learner write all weights, and start anew from the last checkpoint",
            )
        await server.post("/update_weight_version", {"new_version": str(weights.version)})
        await server.post("/resume", {})
    except BaseException:  # also where it is cancelled
        server.kill()
        raise


async def _ask_workers(server: VllmProcess, method: str, **folders: Path | None) -> list[str]:
    """What the workers object to folders, see `mcprl.samplers.vllm_worker`."""
    given = {name: _location(folder) for name, folder in folders.items()}
    answer = await server.post("/collective_rpc", {"method": method, "kwargs": given})
    return sorted({objection for worker in answer["results"] for objection in worker["objections"]})


def _location(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.resolve())


_AS_STARTED = Weights(version=0)


class VllmSampler:
    """Samples through a vLLM server that lives as long as this context, however often it has to be started.

    Deadlines: a request that a live server does not answer within `turn_deadline_s` is lost. Waiting for another
    server is not counted; it is bounded by the time that a server has to start.
    """

    def __init__(
        self,
        model: ModelConfig,
        sampling: SamplingConfig,
        learner: LearnerConfig,
        *,
        turn_deadline_s: float = 600.0,
        log: Path,
    ) -> None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._servers.__aexit__(kind, error, trace)

    @property
    def pid(self) -> int:
        """Process id of the server that runs now. Raises SamplerLostError while none does."""
        return self._servers.running.pid

    @property
    def socket(self) -> Path:
        """Unix socket of the server that runs now. Raises SamplerLostError while none does."""
        return self._servers.running.socket

    @property
    def restarts(self) -> int:
        """How often a server was started in the place of one that had ended."""
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
        """Load `weights` and sample from them. Turns in flight go on; those of one adapter may have to end first."""
        unfit = weights.adapter if self._learner.tuning == "full" else weights.model
        if unfit is not None:
            raise BadValueError(
                f"vLLM was started for learner.tuning {self._learner.tuning} and cannot take the weights in {unfit}",
                fix="set learner.tuning to what the weights are: lora for an adapter, full for a whole model",
            )
        async with self._publishing:
            tries = 0
            while weights != self._weights:
                server = await self._servers.ready()
                tries += 1
                try:
                    await self._put_in_force(server, weights)
                except SamplerLostError:
                    # Weights that end one server after the other end the run, also if turns are sampled in between.
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
            return  # its successor is given what was in force until now
        self._weights = weights
        if not self._whole:
            await self._adapters.unload_idle(server, in_force=weights)

    async def _start(self) -> VllmProcess:
        return await VllmProcess.start(
            self._model, self._sampling, self._learner, turn_deadline_s=self._turn_deadline_s, log=self._log
        )

    async def _restore(self, server: VllmProcess) -> None:
        if not self._whole:
            await self._adapters.restore(server, self._weights)
        elif self._weights != _AS_STARTED:
            await put_whole_weights(server, self._weights)
