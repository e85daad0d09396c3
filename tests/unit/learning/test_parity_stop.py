"""What stops a run before its first step: a sampler with other weights or another context, not one odd token."""
# R8

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_trajectories import batch_of, make_trajectory, naive_logprobs, on_policy, weights_hash
from small_models import save_small_model, small_config, small_learner
from transformers import AutoModelForCausalLM

from mcprl.config import LearnerConfig
from mcprl.errors import ParityError
from mcprl.learning import TorchLearner
from mcprl.records import Batch, Trajectory

FLOAT32 = 1e-4  # what the recipes in float32 set
DEFAULT = LearnerConfig.model_fields["max_parity_error"].default

PROMPT = list(range(3, 9))


def turn(number: int, tokens: int) -> list[int]:
    return [10 + (7 * number + 3 * place) % 50 for place in range(tokens)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def make_learner(folder: Path, tmp_path: Path, max_parity_error: float, **learner: Any) -> TorchLearner:
    return small_learner(small_config(folder, max_parity_error=max_parity_error, **learner), tmp_path / "weights")


def batch(made: list[Trajectory]) -> Batch:
    return batch_of(made[:2], made[2:])


def sampled_by(model: Any, tokens: int) -> list[Trajectory]:
    return [
        on_policy(model, make_trajectory([*PROMPT, *turn(i, tokens)], "c" * 6 + "s" * tokens, reward=i % 2))
        for i in range(4)
    ]


def test_a_sampler_that_kept_the_weights_of_one_update_before_stops_the_run_at_once(folder, model, tmp_path):
    learner = make_learner(folder, tmp_path, FLOAT32, learning_rate=1e-4)
    made = sampled_by(model, 20)
    learner._update(batch(made))
    before = weights_hash(learner.policy)
    stale = [replace(t, weights_version=tuple(1 if own else -1 for own in t.sampled)) for t in made]
    with pytest.raises(ParityError, match="E-LEARN-002"):
        learner._update(batch(stale))
    assert weights_hash(learner.policy) == before


def test_a_sampler_with_the_weights_of_the_learner_stops_nothing(folder, model, tmp_path):
    other = AutoModelForCausalLM.from_pretrained(save_small_model(tmp_path / "other", "qwen3"), dtype="float32").eval()
    with pytest.raises(ParityError, match="Fix: use the same model and dtype in both"):
        make_learner(folder, tmp_path, FLOAT32)._update(batch(sampled_by(other, 20)))
    assert make_learner(folder, tmp_path, FLOAT32)._update(batch(sampled_by(model, 20))).skipped is None


@pytest.mark.parametrize("max_parity_error", [FLOAT32, DEFAULT], ids=["float32", "default"])
def test_a_sampler_that_saw_another_template_stops_the_run_at_once(folder, model, tmp_path, max_parity_error):
    learner = make_learner(folder, tmp_path, max_parity_error)
    made = []
    for number, ours in enumerate(sampled_by(model, 20)):
        theirs = make_trajectory([*PROMPT, 60, 61, 62, *turn(number, 20)], "c" * 9 + "s" * 20)
        made.append(replace(ours, logprobs=(*[0.0] * 6, *naive_logprobs(model, theirs)[9:])))
    with pytest.raises(ParityError, match="E-LEARN-002"):
        learner._update(batch(made))
    assert not learner._folder.exists()


def test_one_token_far_off_among_many_stops_nothing_in_bfloat16_and_all_in_float32(folder, model, tmp_path):
    first, *rest = sampled_by(model, 60)
    far_off = replace(first, logprobs=(*first.logprobs[:-1], first.logprobs[-1] - 8.0))
    made = batch([far_off, *rest])
    update = make_learner(folder, tmp_path, DEFAULT)._update(made)
    assert update.skipped is None
    assert update.metrics["parity_logprob_max_abs_error"] == pytest.approx(8.0, abs=1e-3)
    assert update.metrics["parity_logprob_mean_abs_error"] == pytest.approx(8.0 / 240, rel=1e-2)
    with pytest.raises(ParityError, match=r"disagree by 0\.0333 nats per token \(max: 8\) on the same 240 tokens"):
        make_learner(folder, tmp_path, FLOAT32)._update(made)
