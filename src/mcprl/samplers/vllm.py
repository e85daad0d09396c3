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
from pathlib import Path
from types import TracebackType

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights
from mcprl.samplers.sampler import Completion, SampleRequest
from mcprl.samplers.vllm_adapters import Adapters
from mcprl.samplers.vllm_process import VllmProcess
from mcprl.samplers.vllm_server import replaces_weights
from mcprl.samplers.vllm_supervisor import SupervisedVllm
from mcprl.samplers.vllm_turns import GENERATE_PATH, generate_body, read_completion
from mcprl.samplers.vllm_whole_weights import check_whole_weights, put_whole_weights

__all__ = ["VllmSampler"]

_AS_STARTED = Weights(version=0)


class VllmSampler:
    """Samples through a vLLM server that lives as long as this context, however often it has to be started.

    Deadlines: a request that a live server does not answer within sampling.request_deadline_s is lost. Waiting for
    another server is not counted; that a server must be healthy within sampling.vllm.start_deadline_s bounds it.
    """

    def __init__(self, model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, log: Path) -> None:
        self._model = model
        self._sampling = sampling
        self._learner = learner
        self._log = log
        self._whole = replaces_weights(sampling, learner)
        self._weights = _AS_STARTED
        self._adapters = Adapters()
        self._publishing = asyncio.Lock()
        self._servers = SupervisedVllm(self._start, self._restore, max_restarts=sampling.vllm.max_restarts)

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
                    if server.may_be_asked or tries > self._sampling.vllm.max_restarts:
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
        return await VllmProcess.start(self._model, self._sampling, self._learner, log=self._log)

    async def _restore(self, server: VllmProcess) -> None:
        if not self._whole:
            await self._adapters.restore(server, self._weights)
        elif self._weights != _AS_STARTED:
            await put_whole_weights(server, self._weights)
