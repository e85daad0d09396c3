"""The transformers sampler: the seed decides the tokens, and the logprobs are those of the distribution drawn from."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcprl.config import ModelConfig
from mcprl.errors import BadValueError, GrammarError, SamplerLostError
from mcprl.grammar.masks import Grammars, load_grammars
from mcprl.records import FinishReason, Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.transformers import TransformersSampler

TINY_QWEN3 = Path(__file__).resolve().parents[3] / ".cache" / "models" / "tiny-qwen3"
REQUEST = SampleRequest(
    prompt_ids=(1, 2, 3, 4, 5), max_tokens=8, temperature=0.7, stop=(), stop_token_ids=(), seed=2**63 - 1
)


@pytest.fixture(scope="module", autouse=True)
def tokenizer_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoTokenizer, "from_pretrained", functools.cache(AutoTokenizer.from_pretrained))
        yield


@pytest.fixture(scope="module")
def base():
    if not (TINY_QWEN3 / "config.json").exists():
        pytest.skip("the tiny model is missing: run scripts/setup")
    return AutoModelForCausalLM.from_pretrained(TINY_QWEN3, dtype="float32").eval()


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory) -> list[Path]:
    """Two different adapters that both change the policy visibly."""
    folders = []
    for seed in (1, 2):
        model = AutoModelForCausalLM.from_pretrained(TINY_QWEN3, dtype="float32")
        policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        folders.append(tmp_path_factory.mktemp(f"adapter-{seed}"))
        policy.save_pretrained(folders[-1])
    return folders


@pytest.fixture
async def sampler(base):
    async with TransformersSampler(ModelConfig(path=str(TINY_QWEN3), dtype="float32")) as running:
        yield running


def recomputed(model, request: SampleRequest, token_ids: tuple[int, ...]) -> list[float]:
    """Logprobs of a turn from one pass over all of it, without a cache."""
    with torch.no_grad():
        logit_TV = model(input_ids=torch.tensor([[*request.prompt_ids, *token_ids]]), use_cache=False).logits[0]
    logprob_TV = torch.log_softmax(logit_TV.double() / request.temperature, dim=-1)
    first = len(request.prompt_ids) - 1
    return [float(logprob_TV[first + i, token]) for i, token in enumerate(token_ids)]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
async def test_logprobs_are_those_of_the_whole_distribution_at_the_temperature(sampler, base, temperature):
    request = replace(REQUEST, temperature=temperature)
    done = await sampler.sample(request)
    assert list(done.logprobs) == pytest.approx(recomputed(base, request, done.token_ids), abs=1e-5)


async def test_the_tokens_depend_on_the_seed_and_not_on_what_runs_beside(sampler):
    requests = [replace(REQUEST, seed=seed, prompt_ids=REQUEST.prompt_ids[: 2 + seed]) for seed in range(4)]
    alone = [await sampler.sample(request) for request in requests]
    torch.manual_seed(0)
    together = await asyncio.gather(*(sampler.sample(request) for request in reversed(requests)))
    assert list(reversed(together)) == alone
    assert len({done.token_ids for done in alone}) == 4
    assert (await sampler.sample(replace(requests[1], seed=77))).token_ids != alone[1].token_ids


async def test_a_turn_of_full_length_is_marked_as_cut(sampler):
    done = await sampler.sample(REQUEST)
    assert (len(done.token_ids), done.finish) == (REQUEST.max_tokens, FinishReason.LENGTH)


async def test_a_stop_token_ends_the_turn_and_is_part_of_it(sampler):
    free = await sampler.sample(REQUEST)
    stopped = await sampler.sample(replace(REQUEST, stop_token_ids=(free.token_ids[3],)))
    first = free.token_ids.index(free.token_ids[3])
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.logprobs == free.logprobs[: first + 1]
    assert stopped.finish is FinishReason.STOP


async def test_a_stop_text_ends_the_turn_even_if_it_spans_two_tokens(sampler):
    free = await sampler.sample(REQUEST)
    third, fourth = (sampler._tokenizer.decode([token]) for token in free.token_ids[2:4])
    assert third
    assert fourth
    text = third[-1] + fourth[0]
    assert text not in sampler._tokenizer.decode(free.token_ids[:3])
    stopped = await sampler.sample(replace(REQUEST, stop=("never seen", text)))
    assert stopped.token_ids == free.token_ids[:4]
    assert stopped.finish is FinishReason.STOP


async def test_a_stop_text_in_the_prompt_does_not_end_the_turn(sampler):
    prompt = tuple(sampler._tokenizer.encode("</tool_call>"))
    done = await sampler.sample(replace(REQUEST, prompt_ids=prompt, stop=("</tool_call>",)))
    assert done.finish is FinishReason.LENGTH


async def test_a_stop_at_the_last_token_allowed_is_a_stop(sampler):
    free = await sampler.sample(REQUEST)
    last = free.token_ids[-1]
    assert last not in free.token_ids[:-1]
    assert (await sampler.sample(replace(REQUEST, stop_token_ids=(last,)))).finish is FinishReason.STOP


async def test_published_weights_are_sampled_from_and_version_0_is_the_base_again(sampler, base, adapters):
    before = await sampler.sample(REQUEST)
    assert set(before.weights_versions) == {0}
    logprobs = {before.logprobs}
    for version, folder in enumerate(adapters, start=1):
        weights = Weights(version=version, adapter=folder)
        assert await sampler.publish(weights) == weights
        done = await sampler.sample(REQUEST)
        assert set(done.weights_versions) == {version}
        logprobs.add(done.logprobs)
    assert len(logprobs) == 3
    await sampler.publish(Weights(version=0))
    assert await sampler.sample(REQUEST) == before


async def test_the_second_adapter_does_not_stand_on_the_first(sampler, adapters):
    await sampler.publish(Weights(version=2, adapter=adapters[1]))
    alone = await sampler.sample(REQUEST)
    await sampler.publish(Weights(version=1, adapter=adapters[0]))
    await sampler.publish(Weights(version=2, adapter=adapters[1]))
    assert await sampler.sample(REQUEST) == alone


async def test_an_adapter_of_another_shape_is_refused_by_name(sampler, adapters, tmp_path):
    other = shutil.copytree(adapters[0], tmp_path / "other")
    tensors = load_file(other / "adapter_model.safetensors")
    changed = next(iter(tensors))
    save_file(tensors | {changed: torch.ones(2, 3)}, other / "adapter_model.safetensors")
    with pytest.raises(BadValueError, match=r"other does not match .*tiny-qwen3: size mismatch"):
        await sampler.publish(Weights(version=1, adapter=other))
    with pytest.raises(SamplerLostError, match="the sampler has no weights"):
        await sampler.sample(REQUEST)


COUNT = '{"type": "integer", "minimum": 0, "maximum": 7}'
GRAMMAR = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": '<tool_call>\n{"count": ',
            "content": {"type": "json_schema", "json_schema": json.loads(COUNT)},
            "end": "}",
        },
    }
)
HELD = replace(REQUEST, max_tokens=60, grammar=GRAMMAR, stop_token_ids=(151643, 151645))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return load_grammars(str(TINY_QWEN3))


@pytest.fixture
async def holding(base, grammars):
    async with TransformersSampler(ModelConfig(path=str(TINY_QWEN3), dtype="float32"), grammars) as running:
        yield running


@pytest.mark.slow
async def test_a_turn_under_a_grammar_follows_it_and_ends_with_it(holding):
    texts = set()
    for seed in range(6):
        done = await holding.sample(replace(HELD, seed=seed))
        assert done.finish is FinishReason.STOP
        assert done.token_ids[-1] in HELD.stop_token_ids
        texts.add(holding._tokenizer.decode(done.token_ids[:-1]))
    assert texts <= {f'<tool_call>\n{{"count": {n}}}' for n in range(8)}
    assert len(texts) > 1


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
async def test_logprobs_under_a_grammar_are_renormalised_over_what_it_admits(holding, base, grammars, temperature):
    request = replace(HELD, temperature=temperature)
    done = await holding.sample(request)
    replay = grammars.replay(GRAMMAR, HELD.stop_token_ids, done.token_ids)
    with torch.no_grad():
        logit_TV = base(input_ids=torch.tensor([[*request.prompt_ids, *done.token_ids]]), use_cache=False).logits[0]
    expected = []
    for place, (token, words) in enumerate(zip(done.token_ids, replay.admissible.tolist(), strict=True)):
        admitted = [32 * w + bit for w, word in enumerate(words) for bit in range(32) if word >> bit & 1]
        scaled = logit_TV[len(request.prompt_ids) - 1 + place].double() / temperature
        expected.append(float(scaled[token] - torch.logsumexp(scaled[admitted], dim=0)))
    assert list(done.logprobs) == pytest.approx(expected, abs=1e-5)
    assert any(replay.forced)
    assert {logprob for logprob, one in zip(done.logprobs, replay.forced, strict=True) if one} == {0.0}
    assert all(logprob < 0 for logprob, one in zip(done.logprobs, replay.forced, strict=True) if not one)


async def test_a_stop_text_ends_a_turn_under_a_grammar(holding):
    done = await holding.sample(replace(HELD, stop=('"count"',)))
    assert done.finish is FinishReason.STOP
    assert holding._tokenizer.decode(done.token_ids).startswith('<tool_call>\n{"count"')
    assert done.token_ids[-1] not in HELD.stop_token_ids


async def test_without_grammars_a_turn_under_a_grammar_is_refused(sampler):
    with pytest.raises(ValueError, match="the sampler has no grammars"):
        await sampler.sample(HELD)


async def test_a_grammar_that_does_not_compile_is_refused(holding):
    with pytest.raises(GrammarError, match="does not compile"):
        await holding.sample(replace(HELD, grammar='{"type": "structural_tag"}'))
