"""How several processes load a model that they shard: its weights once, and in 16 bits where they compute."""
# R23

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import save_small_model, small_config

from mcprl.learning import sharding
from mcprl.learning.models import Reference, load_policy
from mcprl.learning.sharding import Fsdp2Team


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("sharded-model"), "qwen3")


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """One of two processes, without a process group."""

    def make(rank: int) -> Fsdp2Team:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        state = SimpleNamespace(device=torch.device("cpu"), process_index=rank, num_processes=2)
        monkeypatch.setattr(sharding, "PartialState", lambda **_: state)
        monkeypatch.setattr(sharding._dist, "new_group", lambda **_: None)
        return Fsdp2Team(tmp_path / "rendezvous")

    return make


def test_only_the_first_process_loads_weights(team):
    assert [team(rank).loading_device.type for rank in (0, 1, 2)] == ["cpu", "meta", "meta"]


@pytest.mark.parametrize(
    ("tuning", "kl"),
    [("lora", {"coefficient": 0.1, "reference": "ema", "lag": 2}), ("full", {"coefficient": 0.1}), ("lora", {})],
)
def test_a_model_without_weights_has_the_tensors_of_the_whole_one(model, tuning, kl):
    """Tied ones are tied there too: the processes exchange weights by name and in order."""
    config = small_config(model, tuning=tuning, algorithm={"advantages": "gae", "kl": kl})
    forms = list[Any]()
    for device in ("cpu", "meta"):
        policy = load_policy(config, torch.device(device))
        tensors = dict(policy.named_parameters())
        assert {tensor.device.type for tensor in tensors.values()} == {device}
        if kl:
            kept = Reference(policy, config.algorithm.kl).copy
            tensors |= dict(policy.named_parameters()) if kept is None else dict(kept.named_parameters())
        forms.append([(name, tensor.shape, tensor.dtype, tensor.requires_grad) for name, tensor in tensors.items()])
    assert forms[0] == forms[1]


@pytest.mark.parametrize(("dtype", "gathered"), [("float32", None), ("bfloat16", torch.bfloat16)])
def test_layers_are_gathered_in_the_models_dtype_and_gradients_are_summed_in_float32(
    model, team, monkeypatch, dtype, gathered
):
    config = small_config(model, tuning="full")
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    policy, seen = load_policy(config, torch.device("cpu")), list[Any]()
    monkeypatch.setattr(sharding, "init_device_mesh", lambda *_: None)
    monkeypatch.setattr(sharding, "fully_shard", lambda module, *, mesh, mp_policy: seen.append(mp_policy))
    monkeypatch.setattr(policy, "set_reshard_after_forward", lambda _: None, raising=False)
    monkeypatch.setattr(Fsdp2Team, "_send_shards", lambda *_: None)
    team(0)._shard(policy, str(model))
    assert len(seen) == 3  # two layers and the rest
    assert {one.param_dtype for one in seen} == {gathered}
    assert {one.reduce_dtype for one in seen} == {None if gathered is None else torch.float32}
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
