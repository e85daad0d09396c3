"""The transformers sampler takes whole weights: those of the folder, nothing of the old, and never random ones."""
# R23

from __future__ import annotations

import functools
import gc
import json
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from mcprl.config import ModelConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.transformers import TransformersSampler

pytestmark = pytest.mark.slow

REQUEST = SampleRequest(prompt_ids=(1, 2, 3, 4, 5), max_tokens=8, temperature=0.7, stop=(), stop_token_ids=(), seed=4)


@pytest.fixture(scope="module", autouse=True)
def tokenizer_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", functools.cache(AutoTokenizer.from_pretrained))
        yield


@pytest.fixture(scope="module")
def versions(tiny_qwen3, tmp_path_factory) -> list[tuple[Weights, PreTrainedModel]]:
    """Two versions of the model, each with noise on all weights, and the models as they were saved."""
    made = []
    for version in (1, 2):
        model = AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype="float32").eval()
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        folder = tmp_path_factory.mktemp(f"v{version}")
        model.save_pretrained(folder)
        made.append((Weights(version=version, model=folder), model))
    return made


@pytest.fixture
async def sampler(tiny_qwen3):
    async with TransformersSampler(ModelConfig(path=str(tiny_qwen3), dtype="float32")) as running:
        yield running


@pytest.fixture
def spoilt(versions, tmp_path) -> Path:
    """A copy of version 1, for a test to spoil."""
    return shutil.copytree(versions[0][0].model, tmp_path / "spoilt")


async def test_published_weights_are_sampled_from_and_version_0_is_the_base_again(sampler, versions):
    before = await sampler.sample(REQUEST)
    for weights, model in versions:
        assert await sampler.publish(weights) == weights
        done = await sampler.sample(REQUEST)
        with torch.no_grad():
            logit_TV = model(input_ids=torch.tensor([[*REQUEST.prompt_ids, *done.token_ids]])).logits[0, 4:-1]
        logprob_TV = torch.log_softmax(logit_TV.double() / REQUEST.temperature, dim=-1)
        expected = [float(logprob_V[token]) for logprob_V, token in zip(logprob_TV, done.token_ids, strict=True)]
        assert set(done.weights_versions) == {weights.version}
        assert list(done.logprobs) == pytest.approx(expected, abs=1e-5)
        assert max(abs(a - b) for a, b in zip(done.logprobs, before.logprobs, strict=True)) > 0.05
    await sampler.publish(Weights(version=0))
    assert await sampler.sample(REQUEST) == before


async def test_the_old_weights_are_gone_before_the_new_are_read(sampler, versions, monkeypatch):
    old = weakref.ref(sampler._model)
    read = sampler._read_model
    alive: list[bool] = []

    def read_and_look(location: str) -> object:
        gc.collect()
        alive.append(old() is not None)
        return read(location)

    monkeypatch.setattr(sampler, "_read_model", read_and_look)
    await sampler.publish(versions[0][0])
    assert alive == [False]


async def test_another_model_is_refused_and_the_old_one_sampled_from_still(sampler, spoilt):
    before = await sampler.sample(REQUEST)
    settings = json.loads((spoilt / "config.json").read_text())
    (spoilt / "config.json").write_text(json.dumps(settings | {"num_key_value_heads": 1}))
    with pytest.raises(
        BadValueError, match=r"spoilt contains a different model than .*num_key_value_heads is 1 instead of"
    ):
        await sampler.publish(Weights(version=1, model=spoilt))
    (spoilt / "model.safetensors").unlink()
    with pytest.raises(BadValueError, match=r"it has no \*\.safetensors"):
        await sampler.publish(Weights(version=1, model=spoilt))
    assert await sampler.sample(REQUEST) == before


@pytest.mark.parametrize(("shape", "reason"), [(None, "is missing weights .*k_proj"), ((3, 3), "cannot be loaded")])
async def test_weights_that_turn_out_to_be_lacking_are_never_sampled_from(sampler, versions, spoilt, shape, reason):
    tensors = load_file(spoilt / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    del tensors[name]
    if shape is not None:
        tensors[name] = torch.ones(shape)
    save_file(tensors, spoilt / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SamplerLostError, match=reason):
        await sampler.publish(Weights(version=1, model=spoilt))
    with pytest.raises(SamplerLostError, match="has no weights"):
        await sampler.sample(REQUEST)
    await sampler.publish(versions[1][0])  # complete weights fix it
    assert (await sampler.sample(replace(REQUEST, max_tokens=1))).weights_versions == (2,)
