"""Sends all weights from the learner to a vLLM server, without files, through vLLM's weight-transfer API.

For GPUs, vLLM implements both sides: NCCL between different GPUs, and CUDA IPC on the same one. For CPUs, this module
adds its own backend: the tensors are written to anonymous shared memory, and vLLM's worker maps it. vLLM imports its
worker extension from here, which registers this backend before vLLM creates a transfer engine.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import httpx2
import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer import (
    HTTPVLLMWeightSyncClient,
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import TrainerInitInfo, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

from mcprl.errors import SamplerLostError
from mcprl.samplers.sampler import Receiver
from mcprl.samplers.vllm_worker import WholeWeights, finish_loading, parameter_names

__all__ = ["MEMORY_BACKEND", "Source", "WholeWeights", "send_weights"]

MEMORY_BACKEND = "mcprl_memory"
_ALIGNMENT = 64  # bytes, for any dtype
_LOOPBACK = "127.0.0.1"
_DEADLINE_S = 600.0


class Source(WeightSource):
    """A model's weights, moved to `device` one at a time. `tensors` yields the full tensors in the model's order."""

    def __init__(
        self,
        model: nn.Module,
        tensors: Callable[[], Iterator[tuple[str, Tensor]]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._tensors, self._device, self._dtype = model, tensors, device, dtype

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, self._dtype, tuple(p.shape)) for name, p in self._model.named_parameters()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._tensors():
            yield name, tensor.to(self._device, self._dtype)


def send_weights(receiver: Receiver, source: WeightSource, *, rank: int) -> None:
    """Send the weights to a server: see `Receiver.receive`. Only the learner's first process talks to the server."""
    with closing(_Client(receiver)) as client:
        factory: Any = WeightTransferTrainerFactory
        engine = factory.trainer_init(_init_info(receiver, rank), client=client, source=source)
        try:
            engine.send_weights()
        finally:
            engine.shutdown()
        if rank == 0:
            client.shutdown_weight_transfer_engine()


def _init_info(receiver: Receiver, rank: int) -> TrainerInitInfo:
    if receiver.backend == MEMORY_BACKEND:
        return _MemoryTrainerInit(rank=rank)
    if receiver.backend == "ipc":  # packed: a bounded buffer instead of a second copy of all weights on the GPU
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(packed=True, rank=rank)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.create_server((_LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    return NCCLTrainerInitInfo(_LOOPBACK, port, 1 + receiver.workers, rank=rank)


class _Client(HTTPVLLMWeightSyncClient):
    """vLLM's client, connected through the server's Unix socket."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__("http://vllm")
        transport = httpx2.HTTPTransport(uds=str(receiver.socket))
        self._http = httpx2.Client(base_url=self.base_url, transport=transport, timeout=_DEADLINE_S)

    def _post(self, path: str, json: dict[str, Any] | None = None) -> None:
        try:
            response = self._http.post(f"/{path}", json=json)
        except httpx2.TransportError as error:
            raise SamplerLostError(
                f"vLLM did not respond to /{path} while receiving weights ({type(error).__name__})", fix="read its log"
            ) from error
        if not response.is_success:
            raise SamplerLostError(
                f"vLLM could not receive weights: it responded to /{path} with {response.status_code}: "
                f"{response.text[:300]}",
                fix="read its log, or set sampling.vllm.weight_transfer to files",
            )

    def close(self) -> None:
        self._http.close()


@dataclass
class _MemoryInit(WeightTransferInitInfo):
    pass


@dataclass
class _MemoryUpdate(WeightTransferUpdateInfo):
    """The tensors in shared memory, one after the other: _MemoryUpdate("/proc/7/fd/9", ["a"], ["float32"], [[2, 3]])"""

    path: str
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


def _mapped(path: str, dtype_names: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Map the shared memory at `path` as tensors."""
    dtypes = [getattr(torch, name) for name in dtype_names]
    sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in zip(dtypes, shapes, strict=True)]
    places = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    memory: Any = torch.from_file(path, shared=True, size=sum(places), dtype=torch.uint8)
    parts = zip(memory.split(places), sizes, dtypes, shapes, strict=True)
    return [part[:size].view(dtype).view(list(shape)) for part, size, dtype, shape in parts]


class MemoryEngine(WeightTransferEngine[_MemoryInit, _MemoryUpdate]):
    """The vLLM worker's side of a transfer. If tensors are missing, it fails, and the server must be killed."""

    init_info_cls, update_info_cls = _MemoryInit, _MemoryUpdate

    def init_transfer_engine(self, init_info: _MemoryInit) -> None:
        self._wanted, self._loaded = set[str](), set[str]()

    def start_weight_update(self) -> None:
        self._wanted, self._loaded = parameter_names(self.model), set[str]()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Without the base class's wait for an accelerator, which a CPU does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: _MemoryUpdate) -> None:
        tensors = _mapped(update_info.path, update_info.dtype_names, update_info.shapes)
        model: Any = self.model
        self._loaded |= set(model.load_weights(zip(update_info.names, tensors, strict=True)))

    def finish_weight_update(self) -> None:
        objections = finish_loading(self.model, self.model_config, self._wanted, self._loaded)
        if objections:
            raise ValueError("; ".join(objections))

    def shutdown(self) -> None:
        pass


@dataclass
class _MemoryTrainerInit(TrainerInitInfo):
    backend: ClassVar[str] = MEMORY_BACKEND


class _MemoryTrainer(TrainerWeightTransferEngine[_MemoryTrainerInit]):
    """The learner's side of a transfer. The memory is freed once the worker has copied the tensors."""

    init_info_cls = _MemoryTrainerInit

    @classmethod
    def trainer_init(
        cls, init_info: _MemoryTrainerInit, *, client: Any, source: WeightSource | None = None
    ) -> _MemoryTrainer:
        return cls(client=client, source=source, is_sender=init_info.is_sender)

    def send_weights(self) -> None:
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:  # gathering a tensor takes all processes
                pass
            return
        meta = self.source.metadata()
        names = [one.name for one in meta]
        dtype_names, shapes = [str(one.dtype).split(".")[-1] for one in meta], [list(one.shape) for one in meta]
        with _anonymous_file() as path:
            # Gather everything first: a server error then leaves no process waiting for the next tensor.
            for (_, tensor), part in zip(self.source, _mapped(path, dtype_names, shapes), strict=True):
                part.copy_(tensor)
            self.client.init_weight_transfer_engine({})
            self.client.start_weight_update()
            self.client.update_weights({"path": path, "names": names, "dtype_names": dtype_names, "shapes": shapes})
            self.client.finish_weight_update()


@contextmanager
def _anonymous_file() -> Generator[str]:
    number = os.memfd_create("mcprl-weights")
    try:
        yield f"/proc/{os.getpid()}/fd/{number}"
    finally:
        os.close(number)


for _factory, _engine in ((WeightTransferEngineFactory, MemoryEngine), (WeightTransferTrainerFactory, _MemoryTrainer)):
    cast("Any", _factory).register_engine(MEMORY_BACKEND, _engine)
