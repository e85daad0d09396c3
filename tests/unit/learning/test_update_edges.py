"""Updates at their edges: batches with little or nothing in them, and what does not count as having moved."""
# R5, R6

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from made_trajectories import batch_of, make_trajectory, on_policy, ragged_batch
from small_models import small_batch, small_config, small_learner
from transformers import FalconConfig, LlamaConfig, MistralConfig, MistralForCausalLM, Qwen2Config

from mcprl.config import AlgorithmConfig
from mcprl.errors import UnsharableError
from mcprl.learning.algorithms import make_batch
from mcprl.learning.attention import require_sharable
from mcprl.learning.packing import plain_examples
from mcprl.records import Readings, StopReason

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


def give_room_for(trajectories: int, policy) -> list[int]:
    """Let packs of more trajectories run out of memory. Returns the sizes of all packs, as they come."""
    forward, sizes = policy.forward, []

    def limited(pack):
        sizes.append(int(pack.sequence_N.max()) + 1)
        if sizes[-1] > trajectories:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(pack)

    policy.forward = limited
    return sizes


def test_a_pack_that_does_not_fit_is_split_once_with_the_same_update_and_that_is_reported(tiny_model, make_learner):
    batch = ragged_batch(tiny_model)  # of 35 tokens
    whole, split, lost = (make_learner(algorithm={"minibatches": 1, "epochs": 2}, tokens_per_pack=36) for _ in range(3))
    wanted = whole._update(batch)
    assert "pack_splits" not in wanted.metrics
    sizes = give_room_for(2, split.policy)
    update = split._update(batch)
    assert update.metrics["pack_splits"] == 1.0
    assert update.metrics["grad_norm"] == pytest.approx(wanted.metrics["grad_norm"], rel=1e-5)
    assert [size for size in sizes if size > 2] == [4]  # the second pass knows what fits
    assert update.ratios == tuple(pytest.approx(own, abs=1e-4) for own in wanted.ratios)
    give_room_for(0, lost.policy)
    with pytest.raises(torch.OutOfMemoryError):
        lost._update(batch)


def test_episodes_that_ran_out_of_tokens_can_be_masked_and_still_count_in_the_baseline(tiny_model):
    batch = ragged_batch(tiny_model)
    long, *others = batch.groups[0].trajectories
    group = replace(batch.groups[0], trajectories=(replace(long, stop=StopReason.CUT_BY_LENGTH), *others))
    made = [
        make_batch(0, [group], AlgorithmConfig(mask_overlong=masked), Readings(), kl_coefficient=0.0)
        for masked in (False, True)
    ]
    assert any(made[0].learnable[0])
    assert not any(made[1].learnable[0])
    assert made[0].advantages[1:] == made[1].advantages[1:]


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
    with pytest.raises(UnsharableError, match=f"E-LEARN-004 some/model has layers with .*{why}"):
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
