"""Settings that the learner cannot serve are refused with a fix when the recipe is read."""
# R11

from __future__ import annotations

from pathlib import Path

import pytest

from mcprl.errors import BadValueError
from mcprl.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
KL = ("algorithm.kl.coefficient=0.1",)
EMA = ("algorithm.kl.cap=0.1", "algorithm.kl.reference=ema")
DIRECT = ("sampling.vllm.weight_transfer=direct",)
LORA = ("learner.tuning=lora", "model.dtype=float32")

REFUSED = {
    "merged adapters in bfloat16": (
        "hello-cpu",
        ("model.dtype=bfloat16",),
        "set merge_adapters to false",
    ),
    "zero3, full, KL": (
        "qwen3-full-zero3",
        KL,
        "needs a second: use learner.sharding=fsdp2",
    ),
    "zero3, full, EMA": ("qwen3-full-zero3", EMA, "needs a second: use learner.sharding=fsdp2"),
    "zero3, lora, EMA": ("qwen3-full-zero3", LORA + EMA, "needs a second: use learner.sharding=fsdp2"),
    "zero3, lora in bfloat16": (
        "qwen3-full-zero3",
        LORA[:1],
        "a single dtype: use learner.sharding=fsdp2, or model.dtype",
    ),
    "weights of ZeRO-3 without files": (
        "qwen3-full-zero3",
        DIRECT,
        r"weight_transfer=direct .* needs engine=vllm, learner\.sharding=fsdp2",
    ),
    "weights without files, to other hosts": (
        "qwen3-full-zero3",
        (*DIRECT, "learner.sharding=fsdp2", "placement.sampler.urls=[http://10.0.0.1:8000]"),
        r"no placement\.sampler\.urls",
    ),
}
TAKEN = {
    "an adapter is always in files": ("qwen3-full-zero3", (*LORA, *DIRECT)),
    "weights without files": ("qwen3-full-zero3", (*DIRECT, "learner.sharding=fsdp2")),
    "merged adapters in float32": ("hello-cpu", ()),
    "no adapter to merge": ("hello-cpu", ("model.dtype=bfloat16", "learner.tuning=full")),
    "adapters in bfloat16": ("hello-cpu", ("model.dtype=bfloat16", "sampling.vllm.merge_adapters=false")),
    "fsdp2, full, KL": ("qwen3-full-zero3", (*KL, "learner.sharding=fsdp2")),
    "zero3, lora, KL to the base": ("qwen3-full-zero3", LORA + KL),
    "one process, full, KL": ("qwen3-full-zero3", (*KL, "learner.processes=1")),
}


@pytest.mark.parametrize(("recipe", "overrides", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_with_a_fix(recipe, overrides, words):
    with pytest.raises(BadValueError, match=f"(?s)E-CONF-003 .*{words}"):
        load_recipe(RECIPES / f"{recipe}.yaml", overrides)


@pytest.mark.parametrize(("recipe", "overrides"), TAKEN.values(), ids=TAKEN)
def test_what_it_can_do_is_not_refused(recipe, overrides):
    load_recipe(RECIPES / f"{recipe}.yaml", overrides)


def test_activations_are_computed_again_by_default_and_not_in_the_recipes_for_a_cpu():
    assert load_recipe(RECIPES / "qwen3-full-zero3.yaml").learner.checkpointing
    for recipe in ("hello-cpu", "finance-cpu", "hello-skyrl"):
        assert not load_recipe(RECIPES / f"{recipe}.yaml").learner.checkpointing
