"""Weights in shared memory: what vLLM's worker maps is bit for bit what the learner has, in the order of vLLM's API."""
# R22

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcprl.errors import SamplerLostError
from mcprl.samplers.sampler import Receiver

transfer: Any = pytest.importorskip("mcprl.samplers.vllm_transfer", reason="vLLM is missing: install mcprl[vllm]")
RECEIVER = Receiver(socket=Path("/run/mcprl-1/vllm.sock"), backend=transfer.MEMORY_BACKEND, workers=1)


class Model(torch.nn.Module):
    """Odd sizes, so that tensors begin at odd places."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, shape in {"a": (3, 5), "b": (7,), "c": (1, 1), "d": (129, 2)}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, generator=generator)))


class Worker:
    """vLLM's worker: keeps what it loads, as its loaders do, until the update is finished."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, objections: tuple[str, ...] = ()) -> None:
        self.asked: list[str] = []
        self.loaded: dict[str, torch.Tensor] = {}
        self.waiting: list[tuple[str, torch.Tensor]] = []
        self.objections = objections
        self.engine = transfer.MemoryEngine.__new__(transfer.MemoryEngine)
        self.engine.model, self.engine.model_config = self, None
        monkeypatch.setattr(transfer, "_Client", lambda _: self)
        monkeypatch.setattr(transfer, "initialize_layerwise_reload", lambda _: None)
        monkeypatch.setattr(transfer, "parameter_names", lambda _: {"a", "b", "c", "d"})
        monkeypatch.setattr(transfer, "finish_loading", self.finish_loading)

    def load_weights(self, weights: Any) -> list[str]:
        self.waiting = list(weights)
        return [name for name, _ in self.waiting]

    def finish_loading(self, _model: Any, _config: Any, wanted: set[str], loaded: set[str]) -> list[str]:
        assert wanted == loaded
        self.loaded = {name: tensor.clone() for name, tensor in self.waiting}
        return list(self.objections)

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self.asked.append("init")
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))

    def start_weight_update(self) -> None:
        self.asked.append("start")
        self.engine.start_weight_update()

    def update_weights(self, info: dict[str, Any]) -> None:
        self.asked.append("update")
        self.engine.update_weights(info)

    def finish_weight_update(self) -> None:
        self.asked.append("finish")
        try:
            self.engine.finish_weight_update()
        except ValueError as error:  # over HTTP, an answer with status 500
            raise SamplerLostError(str(error), fix="read its log") from error

    def shutdown_weight_transfer_engine(self) -> None:
        self.asked.append("shutdown")

    def close(self) -> None:
        self.asked.append("close")


def send(model: Model, dtype: torch.dtype, *, rank: int = 0) -> None:
    RECEIVER.receive(model, model.named_parameters, device=torch.device("cpu"), dtype=dtype, rank=rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_worker_gets_each_tensor_bit_for_bit_in_the_dtype_of_the_sampler(monkeypatch, dtype):
    worker, model = Worker(monkeypatch), Model()
    with torch.no_grad():
        send(model, dtype)
    assert worker.asked == ["init", "start", "update", "finish", "shutdown", "close"]
    assert worker.loaded.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(worker.loaded[name], parameter.detach().to(dtype)), name


def test_other_processes_of_the_learner_gather_and_ask_nothing(monkeypatch):
    worker, model, gathered = Worker(monkeypatch), Model(), list[str]()

    def tensors() -> Any:
        for name, parameter in model.named_parameters():
            gathered.append(name)
            yield name, parameter.detach()

    RECEIVER.receive(model, tensors, device=torch.device("cpu"), dtype=torch.float32, rank=1)
    assert (gathered, worker.asked) == (["a", "b", "c", "d"], ["close"])


def test_an_update_with_missing_tensors_fails(monkeypatch):
    worker = Worker(monkeypatch, objections=("e is missing",))
    with pytest.raises(SamplerLostError, match="e is missing"), torch.no_grad():
        send(Model(), torch.float32)
    assert worker.asked == ["init", "start", "update", "finish", "close"]
