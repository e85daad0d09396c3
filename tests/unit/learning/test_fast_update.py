"""What makes an update fast on a GPU, as far as a CPU can show it: its precision, and how often it waits."""
# R11, R28

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mcprl.config import RunConfig
from mcprl.learning import TorchLearner, attention, models, optimizer, packing
from mcprl.records import Readings


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("fast-model"), "qwen3")


@pytest.fixture(autouse=True)
def quick_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)
    monkeypatch.setattr(TorchLearner, "_write_weights", lambda learner, _: learner._weights)


def in_bfloat16(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update={"dtype": "bfloat16"})})


class Matmuls(TorchDispatchMode):
    """Counts FLOPs by the dtype of the operands."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = Counter[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            (operand, *_) = (one for one in args if isinstance(one, Tensor))
            self.flops[operand.dtype] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


@pytest.mark.parametrize("share_prefix", [False, True], ids=["rows", "tree"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_at_least_95_percent_of_the_matmul_flops_are_in_bfloat16(
    model, tmp_path, tuning, checkpointing, share_prefix, record_property
):
    config = small_config(model, tuning=tuning, checkpointing=checkpointing, share_prefix=share_prefix)
    learner = small_learner(in_bfloat16(config), tmp_path)
    with Matmuls() as counted:
        assert learner._update(small_batch(learner._config)).skipped is None
    share = counted.flops[torch.bfloat16] / counted.flops.total()
    record_property("bfloat16_share", round(share, 4))
    assert share >= 0.95
    assert {p.dtype for p in learner.optimisation.parameters} == {torch.float32}
    moments = (state["exp_avg"].dtype for state in learner.optimisation.optimiser.state.values())
    assert set(moments) == {torch.float32}


def test_attention_over_a_tree_gets_queries_keys_and_values_of_one_dtype(model, tmp_path, monkeypatch):
    attended, seen = attention._attend_by_nodes, set[tuple[torch.dtype, ...]]()

    def attend(query: Tensor, key: Tensor, value: Tensor, *more: Any) -> Tensor:
        seen.add((query.dtype, key.dtype, value.dtype))
        return attended(query, key, value, *more)

    monkeypatch.setattr(attention, "_attend_by_nodes", attend)
    learner = small_learner(in_bfloat16(small_config(model, tuning="full", share_prefix=True)), tmp_path)
    assert learner._update(small_batch(learner._config)).skipped is None
    assert seen == {(torch.bfloat16,) * 3}


def test_a_4_bit_base_keeps_norms_embeddings_and_head_in_bfloat16(model, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "_four_bits", dict)  # what a CPU lacks is the kernel of the quantized layers
    learner = small_learner(in_bfloat16(small_config(model, tuning="lora_4bit")), tmp_path)
    frozen = {name: p.dtype for name, p in learner.policy.named_parameters() if not p.requires_grad}
    assert len(frozen) > 20
    assert set(frozen.values()) == {torch.bfloat16}


def test_the_head_scores_more_rows_at_once_on_a_larger_gpu(monkeypatch):
    def rows(gigabytes: int) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, gigabytes << 30))
        return packing.block_numbers(torch.device("cuda")) // 151_936

    assert (rows(24), rows(80)) == (331, 1104)
    assert packing.block_numbers(torch.device("cpu")) // 151_936 == 55


def test_the_fused_optimizer_is_undone_and_resumed_like_any_other(model, tmp_path, monkeypatch):
    plain = small_learner(small_config(model), tmp_path / "plain")
    assert not plain.optimisation.optimiser.defaults["fused"]
    monkeypatch.setattr(optimizer, "_FUSED_DEVICES", ("cuda", "cpu"))
    config = small_config(model, algorithm={"kl": {"cap": 1e-12}})
    learner, resumed = (small_learner(config, tmp_path / name) for name in ("one", "other"))
    assert learner.optimisation.optimiser.defaults["fused"]
    optimisation = learner.optimisation
    for tensor in optimisation.parameters:
        tensor.grad = torch.full_like(tensor, 0.01)
    optimisation.step()
    saved = optimisation.state().copied()
    resumed.optimisation.become(saved)
    for one in (optimisation, resumed.optimisation):
        for tensor in one.parameters:
            tensor.grad = torch.full_like(tensor, 0.02)
        one.step()
    for name, tensor in optimisation.state().tensors.items():
        assert torch.equal(tensor, resumed.optimisation.state().tensors[name]), name
    optimisation.become(saved)
    assert all(torch.equal(tensor, saved.tensors[name]) for name, tensor in optimisation.state().tensors.items())


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_first_minibatch_is_not_scored_before_it_is_learned_from(model, tmp_path, minibatches):
    algorithm = {"old_logprobs": "recomputed", "minibatches": minibatches}
    learner = small_learner(small_config(model, algorithm=algorithm, tokens_per_pack=1), tmp_path)
    plain = small_batch(learner._config)
    passes = list[bool]()
    learner.policy.register_forward_pre_hook(lambda *_: passes.append(torch.is_grad_enabled()))
    readings = learner._read(plain.trajectories)
    update = learner._update(small_batch(learner._config, readings=readings))
    assert update.skipped is None
    episodes = len(plain.trajectories)
    assert (passes.count(True), passes.count(False)) == (episodes, episodes - episodes // minibatches)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_the_weights_are_those_of_scoring_everything_first(model, tmp_path, minibatches):
    algorithm = {"old_logprobs": "recomputed", "minibatches": minibatches}
    config = small_config(model, algorithm=algorithm, tokens_per_pack=1)
    learners = [small_learner(config, tmp_path / str(number)) for number in range(2)]
    eager = learners[0]
    batch = small_batch(config)
    scored = eager._survey(eager.policy, packing.make_examples(batch))[0]
    known = small_batch(config, readings=Readings(logprobs=scored))
    updates = [learners[0]._update(known), learners[1]._update(batch)]
    states = [learner.optimisation.state().tensors for learner in learners]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert updates[0].metrics["loss"] == updates[1].metrics["loss"]
    assert updates[0].ratios == updates[1].ratios


@pytest.mark.parametrize(("algorithm", "copies"), [({}, 0), ({"minibatches": 2}, 1), ({"kl": {"cap": 9.0}}, 1)])
def test_the_state_is_copied_only_if_a_later_fault_could_undo_a_step(model, tmp_path, monkeypatch, algorithm, copies):
    learner = small_learner(small_config(model, algorithm={"minibatches": 1} | algorithm), tmp_path)
    made = list[int]()
    make_undo = learner.optimisation.make_undo
    monkeypatch.setattr(learner.optimisation, "make_undo", lambda: (made.append(1), make_undo())[1])
    trajectories = [t for group in small_groups() for t in group.trajectories]
    assert learner._update(small_batch(learner._config, readings=learner._read(trajectories))).skipped is None
    assert len(made) == copies
    equal = small_groups(rewards=(0.5, 0.5, 0.1, 0.1))
    readings = learner._read([t for group in equal for t in group.trajectories])
    assert learner._update(small_batch(learner._config, equal, readings=readings)).skipped is not None
    assert len(made) == copies
