"""An update: what it changes, what it refuses, and what it leaves on disk."""
# R2, R8, R11, R13

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
import torch
from made_trajectories import (
    TINY_QWEN3,
    batch_of,
    gradient_of,
    make_config,
    make_trajectory,
    naive_logprobs,
    on_policy,
    ragged_batch,
    weights_hash,
)
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mcprl.errors import ParityError
from mcprl.learning.update import minibatches_of
from mcprl.records import Batch
from mcprl.samplers import SampleRequest
from mcprl.samplers.transformers import TransformersSampler


def request(prompt: tuple[int, ...], seed: int) -> SampleRequest:
    return SampleRequest(prompt_ids=prompt, max_tokens=6, temperature=0.8, stop=(), stop_token_ids=(), seed=seed)


async def sample_batch(sampler: TransformersSampler, *, rewards: tuple[float, ...] = (1.0, 0.0, 0.5)) -> Batch:
    """One group, sampled for real."""
    prompt = (9, 8, 7, 6)
    made = []
    for member, reward in enumerate(rewards):
        done = await sampler.sample(request(prompt, seed=member))
        kinds = "c" * len(prompt) + "s" * len(done.token_ids)
        logprobs = [0.0] * len(prompt) + list(done.logprobs)
        ids = [*prompt, *done.token_ids]
        made.append(make_trajectory(ids, kinds, reward=reward, temperature=0.8, logprobs=logprobs))
    return batch_of(made)


async def test_a_batch_that_was_just_sampled_has_ratio_one_before_the_first_step(make_learner):
    async with TransformersSampler(make_config().model) as sampler:
        batch = await sample_batch(sampler)
    metrics = (await make_learner().update(batch)).metrics
    assert metrics["parity_logprob_max_abs_error"] <= 1e-5
    assert metrics["parity_ratio_mean_abs_error"] <= 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)  # one minibatch: all ratios are those before the step
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-8)
    assert metrics["clipped_fraction"] == 0.0
    assert metrics["alignment"] == 1.0
    assert metrics["learnable_tokens"] == 18.0
    assert metrics["sampled_share"] == pytest.approx(18 / 30)
    assert metrics["learnable_share"] == 1.0
    assert metrics["forced_share"] == metrics["fixed_text_share"] == metrics["replay_s"] == 0.0


async def test_sampler_and_learner_agree_again_after_the_new_weights_are_published(make_learner):
    learner = make_learner()
    async with TransformersSampler(make_config().model) as sampler:
        batch = await sample_batch(sampler)
        before = await sampler.sample(request((9, 8, 7, 6), seed=99))
        update = await learner.update(batch)
        await sampler.publish(update.weights)
        after = await sampler.sample(request((9, 8, 7, 6), seed=99))
    trajectory = make_trajectory([9, 8, 7, 6, *after.token_ids], "cccc" + "s" * len(after.token_ids), temperature=0.8)
    assert list(after.logprobs) == pytest.approx(naive_logprobs(learner.policy, trajectory)[4:], abs=1e-5)
    assert set(after.weights_versions) == {1}
    assert max(abs(a - b) for a, b in zip(after.logprobs, before.logprobs, strict=True)) > 1e-3


def test_the_size_of_a_pack_does_not_change_the_gradient(tiny_model, make_learner):
    batch = ragged_batch(tiny_model)
    whole_loss, whole = gradient_of(make_learner(), batch)
    loss, parts = gradient_of(make_learner(tokens_per_pack=16), batch)
    assert whole.norm() > 0.0
    assert float((parts - whole).norm() / whole.norm()) <= 1e-6
    assert loss == pytest.approx(whole_loss, abs=1e-7)


def test_the_loss_is_the_mean_over_learnable_tokens(tiny_model, make_learner):
    batch = ragged_batch(tiny_model)
    pairs = [
        (advantage, learnable)
        for mask, row in zip(batch.learnable, batch.advantages, strict=True)
        for advantage, learnable in zip(row, mask, strict=True)
    ]
    # At ratio 1 the loss of a token is minus its advantage.
    wanted = -sum(advantage for advantage, _ in pairs) / sum(learnable for _, learnable in pairs)
    assert make_learner()._update(batch).metrics["loss"] == pytest.approx(wanted, abs=1e-5)


def test_a_batch_in_which_nothing_is_better_or_worse_leaves_the_weights_as_they_are(tiny_model, make_learner):
    learner = make_learner(algorithm={"minibatches": 2, "epochs": 2})
    before = weights_hash(learner.policy)
    update = learner._update(ragged_batch(tiny_model, rewards=(0.1, 0.1, 0.7, 0.7)))
    metrics = update.metrics
    assert "there is nothing to learn" in update.skipped
    assert update.weights.version == 0
    assert weights_hash(learner.policy) == before
    assert metrics["optimiser_steps"] == 0.0
    assert metrics["minibatches_without_signal"] == 4.0
    assert metrics["parity_logprob_max_abs_error"] <= 1e-5  # still measured


def test_minibatches_deal_out_every_trajectory_once_a_pass(tiny_model, make_learner):
    learner = make_learner(algorithm={"minibatches": 3, "epochs": 2})
    dealt = list(minibatches_of(ragged_batch(tiny_model), learner._config))
    assert len(dealt) == 6
    for first in (0, 3):
        assert sorted(i for minibatch in dealt[first : first + 3] for i in minibatch) == [0, 1, 2, 3]


def test_logprobs_of_another_policy_are_refused_before_any_step(tiny_model, make_learner):
    learner = make_learner(max_parity_error=1e-4)
    before = weights_hash(learner.policy)
    made = ragged_batch(tiny_model).trajectories
    shifted = [
        replace(t, logprobs=tuple(p - 0.01 if s else 0.0 for p, s in zip(t.logprobs, t.sampled, strict=True)))
        for t in made
    ]
    with pytest.raises(ParityError, match=r"E-LEARN-002 .* disagree by 0\.01 nats per token \(max: 0\.01\) "):
        learner._update(batch_of(shifted[:2], shifted[2:]))
    assert weights_hash(learner.policy) == before
    assert not learner._folder.exists()


def test_the_better_episode_becomes_likelier_and_the_worse_one_less_likely(tiny_model, make_learner):
    learner = make_learner()
    better = on_policy(tiny_model, make_trajectory([10, 11, 500, 501, 502], "ccsss", reward=1.0))
    worse = on_policy(tiny_model, make_trajectory([10, 11, 700, 701, 702], "ccsss", reward=0.0))

    def likelihoods() -> list[float]:
        return [sum(naive_logprobs(learner.policy, t)[2:]) for t in (better, worse)]

    before = likelihoods()
    learner._update(batch_of([better, worse]))
    after = likelihoods()
    assert after[0] > before[0] + 1e-3
    assert after[1] < before[1] - 1e-3


def test_the_saved_adapter_is_whole_and_is_the_learners_policy(tiny_model, make_learner):
    learner = make_learner()
    batch = ragged_batch(tiny_model)
    first = learner._update(batch).weights
    second = learner._update(batch).weights
    assert (first.version, second.version) == (1, 2)
    assert sorted(path.name for path in learner._folder.iterdir()) == ["v1", "v2"]
    base = AutoModelForCausalLM.from_pretrained(TINY_QWEN3, dtype="float32")
    loaded = PeftModel.from_pretrained(base, str(second.adapter)).eval()
    trajectory = batch.trajectories[0]
    assert naive_logprobs(loaded, trajectory) == pytest.approx(naive_logprobs(learner.policy, trajectory), abs=1e-6)


def test_half_written_weights_of_an_interrupted_run_are_replaced(tiny_model, make_learner):
    learner = make_learner()
    leftover = learner._folder / "v1.partial" / "adapter_model.safetensors"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("half")
    weights = learner._update(ragged_batch(tiny_model)).weights
    assert [path.name for path in learner._folder.iterdir()] == ["v1"]
    assert (weights.adapter / "adapter_model.safetensors").stat().st_size > 100


@pytest.mark.slow
def test_the_same_seed_and_batch_give_the_same_weights_to_the_bit(tiny_model, make_learner):
    hashes = []
    for seed in (3, 3, 4):
        learner = make_learner(seed=seed, algorithm={"minibatches": 2})
        torch.manual_seed(len(hashes))  # what others drew from the global generator must not matter
        learner._update(ragged_batch(tiny_model))
        hashes.append(weights_hash(learner.policy))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_new_adapter_is_the_identity(tiny_model, make_learner):
    trajectory = ragged_batch(tiny_model).trajectories[0]
    assert naive_logprobs(make_learner().policy, trajectory) == naive_logprobs(tiny_model, trajectory)


async def test_an_update_leaves_the_event_loop_free(tiny_model, make_learner):
    learner = make_learner()
    entered, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def blocked(batch):
        loop.call_soon_threadsafe(entered.set)
        assert released.wait(60)
        return "done"

    learner._update = blocked
    updating = asyncio.create_task(learner.update(ragged_batch(tiny_model)))
    await asyncio.wait_for(entered.wait(), 60)
    released.set()
    assert await updating == "done"
