"""Updates at their edges: batches with little or nothing in them, and what does not count as having moved."""
# R5, R6

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from made_trajectories import batch_of, make_trajectory, on_policy, ragged_batch
from small_models import small_batch, small_config, small_learner
from transformers import FalconConfig, LlamaConfig, MistralConfig, MistralForCausalLM, Qwen2Config

from mcprl.errors import UnsharableError
from mcprl.learning.attention import require_sharable
from mcprl.learning.packing import plain_examples

CAPPED = {"cap": 1e-9, "reference": "sync", "lag": 1}


def test_a_batch_with_fewer_trajectories_than_minibatches_is_learned_from_all_the_same(tiny_model, make_learner):
    learner = make_learner(algorithm={"minibatches": 8, "entropy": 0.01})
    update = learner._update(ragged_batch(tiny_model))
    assert update.skipped is None
    assert update.metrics["optimiser_steps"] == 4.0


def test_minibatches_in_which_nothing_was_chosen_are_passed_over_whatever_else_pulls(tiny_model, make_learner):
    learner = make_learner(algorithm={"minibatches": 3, "entropy": 0.01})
    without = [make_trajectory([1, 2, 3], "cff", reward=reward) for reward in (0.0, 1.0)]
    chosen = on_policy(tiny_model, make_trajectory([3, 500, 501], "css", reward=4.0))
    metrics = learner._update(batch_of([*without, chosen])).metrics
    assert (metrics["optimiser_steps"], metrics["minibatches_without_signal"]) == (1.0, 2.0)


def test_a_batch_without_signal_is_not_said_to_be_over_the_cap(tiny_model, make_learner):
    learner = make_learner(algorithm={"kl": {"cap": 1e-9, "reference": "base"}})
    equal = ragged_batch(tiny_model, rewards=(0.1, 0.1, 0.7, 0.7))
    made = learner._read(equal.trajectories)
    far = tuple(tuple(p - 1.0 if p else 0.0 for p in column) for column in made.reference_logprobs)
    update = learner._update(replace(equal, readings=replace(made, reference_logprobs=far)))
    assert update.metrics["optimiser_steps_over_cap"] == 0.0
    assert "there is nothing to learn" in update.skipped


def test_a_batch_that_is_too_small_is_not_called_one_without_numbers(tiny_model, make_learner):
    learner = make_learner(algorithm={"min_learnable_tokens": 4})
    batch = ragged_batch(tiny_model)
    spoilt = ((math.nan,) * len(batch.advantages[0]), *batch.advantages[1:])
    assert learner._update(replace(batch, advantages=spoilt)).metrics["nonfinite"] == 1.0
    small = batch_of([make_trajectory([1, 2], "cs", reward=reward) for reward in (0.0, 1.0)])
    metrics = learner._update(small).metrics
    assert (metrics["nonfinite"], metrics["nonfinite_in_a_row"], metrics["update_skipped"]) == (0.0, 1.0, 1.0)


def test_the_ratio_of_each_token_is_the_one_it_was_last_learnt_with(tiny_model, make_learner):
    """Two passes with one step between them: the second sees the policy that the first one left."""
    batch = ragged_batch(tiny_model)
    once = make_learner(algorithm={"epochs": 1})
    first = once._update(batch)
    assert first.ratios == tuple(tuple(pytest.approx(float(m), abs=1e-4) for m in mask) for mask in batch.learnable)

    examples = plain_examples(batch.trajectories, [t.sampled for t in batch.trajectories])
    moved = once._survey(once.policy, examples)[0]
    twice = make_learner(algorithm={"epochs": 2})
    second = twice._update(batch)
    for ratios, new, trajectory, mask in zip(second.ratios, moved, batch.trajectories, batch.learnable, strict=True):
        wanted = [
            math.exp(now - then) if learnable else 0.0
            for now, then, learnable in zip(new, trajectory.logprobs, mask, strict=True)
        ]
        assert ratios == pytest.approx(wanted, rel=1e-3)
    assert any(abs(ratio - 1) > 1e-3 for ratios in second.ratios for ratio in ratios if ratio)


def test_of_an_update_that_was_not_made_no_ratio_is_known(make_learner):
    learner = make_learner(algorithm={"min_learnable_tokens": 4})
    small = batch_of([make_trajectory([1, 2], "cs", reward=reward) for reward in (0.0, 1.0)])
    assert learner._update(small).ratios == ((0.0, 0.0), (0.0, 0.0))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (MistralConfig(sliding_window=64), "a window of 64 tokens"),
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=0), "sliding_attention"),
        (FalconConfig(), "custom attention"),
    ],
)
def test_a_model_whose_attention_cannot_be_split_is_refused_by_name(config, why):
    with pytest.raises(UnsharableError, match=f"E-LEARN-004 some/model has layers of .*{why}"):
        require_sharable(config, "some/model")


@pytest.mark.parametrize("config", [LlamaConfig(), MistralConfig(sliding_window=None), Qwen2Config()])
def test_a_model_that_attends_to_all_that_came_before_is_not(config):
    require_sharable(config, "some/model")


def test_a_model_with_windows_learns_without_shared_prefixes(tmp_path):
    shape = {"vocab_size": 67, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 1}
    MistralForCausalLM(MistralConfig(**shape, **heads, sliding_window=8)).save_pretrained(tmp_path / "model")
    with pytest.raises(UnsharableError, match=r"Fix: set learner\.share_prefix to false"):
        small_learner(small_config(tmp_path / "model"), tmp_path / "weights")
    config = small_config(tmp_path / "model", share_prefix=False)
    assert small_learner(config, tmp_path / "weights")._update(small_batch(config)).skipped is None
