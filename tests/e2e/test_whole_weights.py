"""Whole weights reach a real vLLM: after each publication it samples from the new ones, and from nothing of the old.

One vLLM samples everything first; the tests then look at what it returned. Its model ties output and embeddings, the
case in which vLLM keeps a copy of its own.
"""
# R22, R23

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from shared_vllm import ANSWER_S
from transformers import AutoModelForCausalLM

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import BadValueError, McprlError
from mcprl.records import Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.vllm import VllmSampler

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

REQUEST = SampleRequest(
    prompt_ids=tuple(range(100, 200)), max_tokens=16, temperature=0.8, stop=(), stop_token_ids=(), seed=3
)
NOISE = 0.02
LACKING = ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.input_layernorm.weight")


@dataclass
class Observed:
    """What vLLM sampled, in order, and which publications it refused."""

    in_order: list[Completion] = field(default_factory=list)
    amid_publications: list[tuple[SampleRequest, Completion]] = field(default_factory=list)
    refused: dict[str, McprlError] = field(default_factory=dict)
    after_refusals: Completion | None = None
    publish_seconds: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def versions(small_qwen3, tmp_path_factory) -> list[Path]:
    """Folders of the model and of three versions of it, each with noise on all weights."""
    folder = tmp_path_factory.mktemp("versions")
    model = AutoModelForCausalLM.from_pretrained(small_qwen3, dtype="float32")
    assert model.config.tie_word_embeddings
    folders = [small_qwen3]
    for version in (1, 2, 3):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=generator))
        folders.append(folder / f"v{version}")
        # The last in several files.
        model.save_pretrained(folders[-1], **({"max_shard_size": "200KB"} if version == 3 else {}))
    assert len(list(folders[3].glob("*.safetensors"))) > 1
    return folders


@pytest.fixture(scope="module")
def broken(versions, tmp_path_factory) -> dict[str, Path]:
    """Folders that must not be sampled from, by what is wrong with them."""
    top = tmp_path_factory.mktemp("broken")
    folders = {name: shutil.copytree(versions[1], top / name) for name in ("empty", "cut", "other", "lacking")}
    (folders["empty"] / "model.safetensors").unlink()
    with (folders["cut"] / "model.safetensors").open("r+b") as file:
        file.truncate(300_000)
    settings = json.loads((folders["other"] / "config.json").read_text())
    (folders["other"] / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False}))
    tensors = load_file(folders["lacking"] / "model.safetensors")
    for name in LACKING:
        del tensors[name]
    save_file(tensors, folders["lacking"] / "model.safetensors", metadata={"format": "pt"})
    return folders


@pytest.fixture(scope="module")
def observed(versions, broken, tmp_path_factory) -> Observed:
    return asyncio.run(observe(versions, broken, tmp_path_factory.mktemp("logs") / "vllm.log"))


def sampler_of(model: Path, log: Path) -> VllmSampler:
    settings = ModelConfig(path=str(model), dtype="float32", context_tokens=256)
    return VllmSampler(
        settings,
        SamplingConfig(),
        LearnerConfig(tuning="full"),
        max_sequences=8,
        turn_deadline_s=ANSWER_S,
        log=log,
    )


async def observe(versions: list[Path], broken: dict[str, Path], log: Path) -> Observed:
    seen = Observed()
    weights = [Weights(version=n, model=folder if n else None) for n, folder in enumerate(versions)]
    async with sampler_of(versions[0], log) as sampler:
        # Version 2 twice: what is in force is not loaded again. Version 0 is what the server was started with.
        for version in (0, 1, 2, 2, 0, 3):
            started = time.monotonic()
            assert await sampler.publish(weights[version]) == weights[version]
            seen.publish_seconds.append(time.monotonic() - started)
            seen.in_order.append(await sampler.sample(REQUEST))

        for version in (2, 3):  # with no turn between them
            await sampler.publish(weights[version])
        seen.amid_publications = await sample_amid_publications(sampler, [weights[1], weights[2]])
        await sampler.publish(weights[1])

        for name in ("empty", "cut", "other"):
            with pytest.raises(McprlError) as caught:
                await sampler.publish(Weights(version=2, model=broken[name]))
            seen.refused[name] = caught.value
        seen.after_refusals = await sampler.sample(REQUEST)
    return seen


async def sample_amid_publications(
    sampler: VllmSampler, weights: list[Weights]
) -> list[tuple[SampleRequest, Completion]]:
    """Turns in flight while weights are published, one version after the other, and turns that are asked for then."""
    requests = [replace(REQUEST, seed=seed, max_tokens=150) for seed in range(6)]
    turns = [asyncio.create_task(sampler.sample(request)) for request in requests[:4]]
    for place, version in enumerate(weights):
        await sampler.sample(replace(REQUEST, max_tokens=20))  # the others are sampled at the same time
        publication = asyncio.create_task(sampler.publish(version))
        turns.append(asyncio.create_task(sampler.sample(requests[4 + place])))
        await publication
    return list(zip(requests, await asyncio.gather(*turns), strict=True))


@pytest.fixture(scope="module")
def errors_by(versions):
    """How far each of a turn's logprobs is from the one that transformers computes with a version's weights."""
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval() for folder in versions]

    @torch.no_grad()
    def measure(version: int, request: SampleRequest, done: Completion) -> list[float]:
        ids = torch.tensor([[*request.prompt_ids, *done.token_ids]])
        logit_TV = models[version](input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
        logprob_TV = torch.log_softmax(logit_TV.double() / request.temperature, dim=-1)
        logprob_T = logprob_TV.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        return (logprob_T - torch.tensor(done.logprobs)).abs().tolist()

    return measure


@pytest.fixture(scope="module")
def max_error(errors_by):
    return lambda version, request, done: max(errors_by(version, request, done))


def test_after_each_publication_the_logprobs_are_those_of_the_new_weights_alone(observed, max_error, record_property):
    order = [0, 1, 2, 2, 0, 3]
    assert [set(done.weights_versions) for done in observed.in_order] == [{version} for version in order]
    errors = [max_error(version, REQUEST, done) for version, done in zip(order, observed.in_order, strict=True)]
    record_property("max_abs_error", max(errors))
    record_property("publish_seconds", round(max(observed.publish_seconds), 2))
    assert max(errors) <= 1e-4
    # Any other version's weights would have been noticed.
    for done in observed.in_order:
        for other in {0, 1, 2, 3} - set(done.weights_versions):
            assert max_error(other, REQUEST, done) > 0.05


def test_the_version_published_0_is_the_model_the_server_was_started_with(observed):
    first, again = (done for done in observed.in_order if done.weights_versions[0] == 0)
    assert again == first


def test_a_turn_goes_on_under_new_weights_and_each_token_has_the_logprob_of_its_own_version(
    observed, errors_by, record_property
):
    """Given all tokens before it: nothing of what the old weights made of them is left."""
    spans = [list(dict.fromkeys(done.weights_versions)) for _, done in observed.amid_publications]
    assert any(len(span) > 1 for span in spans)
    errors: list[float] = []
    for (request, done), span in zip(observed.amid_publications, spans, strict=True):
        assert span == [version for version in (3, 1, 2) if version in span]  # in the order of publication
        for version in span:
            of_it = [own == version for own in done.weights_versions]
            measured = errors_by(version, request, done)
            errors += [error for error, own in zip(measured, of_it, strict=True) if own]
    record_property("max_abs_error_amid_publications", max(errors))
    record_property("turns_of_several_versions", sum(len(span) > 1 for span in spans))
    assert max(errors) <= 1e-4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty", r"it has no \*\.safetensors.*Fix: publish"),
        ("cut", r"model\.safetensors is missing, truncated.*Fix: publish"),
        ("other", r"tie_word_embeddings is False instead of True\. Fix: use weights of the model that"),
    ],
)
def test_a_folder_without_the_models_weights_is_refused_and_the_old_ones_stay(observed, max_error, name, reason):
    error = observed.refused[name]
    assert isinstance(error, BadValueError)
    assert re.search(reason, str(error))
    assert set(observed.after_refusals.weights_versions) == {1}
    assert max_error(1, REQUEST, observed.after_refusals) <= 1e-4


@pytest.mark.full  # for its restart; tests/unit/samplers/test_vllm_whole_weights.py has the same with a stand-in
async def test_weights_that_turn_out_to_be_lacking_are_never_sampled_from(versions, broken, max_error, tmp_path):
    """Some layers are new then and others old: the server is ended, and the next one has the version in force."""
    async with sampler_of(versions[0], tmp_path / "vllm.log") as sampler:
        await sampler.publish(Weights(version=1, model=versions[1]))
        with pytest.raises(BadValueError) as caught:
            await sampler.publish(Weights(version=2, model=broken["lacking"]))
        done = await sampler.sample(REQUEST)
        assert sampler.restarts == 1
    what = caught.value.what
    assert "it lacks model.layers.0.self_attn.qkv_proj; it lacks model.layers.1.input_layernorm.weight" in what
    assert set(done.weights_versions) == {1}
    assert max_error(1, REQUEST, done) <= 1e-4
