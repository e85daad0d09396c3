"""An adapter added to its model's weights: what PEFT makes of the two, and nothing left out in silence."""
# R22

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mcprl.learning.models import merge_adapter
from mcprl.samplers.vllm_worker import MergedAdapter


@pytest.fixture(scope="module", params=[False, True], ids=["scaled by the rank", "by its root"])
def trained(request, tiny_qwen3, tmp_path_factory):
    """The folder of an adapter with random weights, the model's tensors, and those that PEFT merges."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="float32")
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], use_rslora=request.param)
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    folder = tmp_path_factory.mktemp("adapter")
    adapted.save_pretrained(folder)
    return folder, base, adapted.merge_and_unload().state_dict()


def test_the_weights_are_those_that_peft_merges(trained):
    folder, base, merged = trained
    adapter = MergedAdapter(folder)
    added = dict(adapter.added_to(base.items()))
    assert adapter.objections == []
    assert list(added) == list(base)
    changed = {name for name in base if not torch.equal(added[name], base[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "down_proj"}
    for name, tensor in merged.items():
        torch.testing.assert_close(added[name], tensor, rtol=1e-6, atol=1e-6)


def test_weights_keep_their_precision_and_the_sum_is_rounded_once(trained):
    folder, base, _ = trained
    name = next(name for name in base if name.endswith("q_proj.weight"))
    rounded = base[name].bfloat16()
    (_, added), (_, exact) = (
        next(iter(MergedAdapter(folder).added_to([(name, weight)]))) for weight in (rounded, rounded.float())
    )
    assert added.dtype is torch.bfloat16
    assert torch.equal(added, exact.bfloat16())


def test_a_layer_that_the_model_does_not_have_is_objected_to(trained):
    folder, base, _ = trained
    adapter = MergedAdapter(folder)
    name = next(name for name in base if name.endswith("q_proj.weight"))
    list(adapter.added_to((other, tensor) for other, tensor in base.items() if other != name))
    assert adapter.objections == [f"the model has no weight {name}"]


def altered(trained, path, *, settings: dict[str, object], tensors: dict[str, torch.Tensor]) -> MergedAdapter:
    folder = trained[0]
    given = json.loads((folder / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(given | settings))
    save_file(load_file(folder / "adapter_model.safetensors") | tensors, path / "adapter_model.safetensors")
    return MergedAdapter(path)


@pytest.mark.parametrize(
    ("settings", "tensors", "objection"),
    [
        ({"use_dora": True}, {}, "its setting use_dora is not supported"),
        ({"rank_pattern": {"q_proj": 2}}, {}, "its setting rank_pattern is not supported"),
        ({}, {"base_model.model.lm_head.weight": torch.zeros(2)}, "its tensor base_model.model.lm_head.weight is not"),
        ({}, {"base_model.model.x.lora_A.weight": torch.zeros(2, 2)}, "its tensor base_model.model.x.lora_A.weight"),
    ],
)
def test_what_is_more_than_two_matrices_is_objected_to(trained, tmp_path, settings, tensors, objection):
    adapter = altered(trained, tmp_path, settings=settings, tensors=tensors)
    list(adapter.added_to(trained[1].items()))
    assert len(adapter.objections) == 1
    assert adapter.objections[0].startswith(objection)


def test_an_exported_model_has_the_merged_weights_rounded_once_and_its_tokenizer(trained, tiny_qwen3, tmp_path):
    folder, _, merged = trained
    merge_adapter(str(tiny_qwen3), folder, tmp_path / "out", dtype="bfloat16")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="bfloat16").state_dict()
    assert exported.keys() == merged.keys()
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, merged[name].bfloat16())
    assert (tmp_path / "out" / "tokenizer_config.json").exists()
