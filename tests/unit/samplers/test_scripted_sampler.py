"""The scripted sampler and the contract of a completion."""

from __future__ import annotations

import pytest

from mcprl.errors import MissingLogprobError
from mcprl.records import FinishReason, Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.sampler import ScriptedSampler

REQUEST = SampleRequest(prompt_ids=(1, 2), max_tokens=3, temperature=1.0, stop=(), stop_token_ids=(), seed=0)


async def test_it_says_what_the_script_says_for_the_request():
    async with ScriptedSampler(lambda request: (len(request.prompt_ids), 9), logprob=-0.25) as sampler:
        done = await sampler.sample(REQUEST)
    assert done == Completion(
        token_ids=(2, 9), logprobs=(-0.25, -0.25), finish=FinishReason.STOP, weights_versions=(0, 0)
    )


async def test_a_script_longer_than_allowed_is_cut_like_any_turn():
    async with ScriptedSampler(lambda _: (1, 2, 3, 4)) as sampler:
        done = await sampler.sample(REQUEST)
    assert (done.token_ids, len(done.logprobs), done.finish) == ((1, 2, 3), 3, FinishReason.LENGTH)


async def test_a_script_of_exactly_the_length_allowed_is_not_cut():
    async with ScriptedSampler(lambda _: (1, 2, 3)) as sampler:
        assert (await sampler.sample(REQUEST)).finish is FinishReason.STOP


async def test_published_weights_are_stamped_on_what_follows():
    async with ScriptedSampler(lambda _: (1,)) as sampler:
        await sampler.publish(Weights(version=4))
        assert (await sampler.sample(REQUEST)).weights_versions == (4,)


@pytest.mark.parametrize(("ids", "logprobs"), [((), ()), ((1, 2), (-0.1,)), ((1,), (-0.1, -0.2))])
def test_a_completion_without_a_logprob_for_each_token_is_refused(ids, logprobs):
    with pytest.raises(MissingLogprobError, match=f"returned {len(ids)} tokens and {len(logprobs)} logprobs"):
        Completion(token_ids=ids, logprobs=logprobs, finish=FinishReason.STOP, weights_versions=(0,) * len(ids))
