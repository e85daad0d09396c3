"""Tokens that older weights sampled: they are learned from with a weight, and say nothing about parity."""
# R28

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from peft import PeftModel
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner

from mcprl.config import RunConfig
from mcprl.errors import ParityError
from mcprl.learning import TorchLearner
from mcprl.learning.update import minibatches_of
from mcprl.records import Batch, Group

CAP = 2.0
Error = Callable[[bool, int], float]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    model = save_small_model(tmp_path_factory.mktemp("stale-model"))
    recomputed = {"old_logprobs": "recomputed"}
    return small_config(model, algorithm=recomputed, learning_rate=1e-3, max_parity_error=1.0)


@pytest.fixture
async def learner(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TorchLearner:
    """One that has made an update, so that its weights are of version 1."""
    monkeypatch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)
    made = small_learner(config, tmp_path / "weights")
    await made.update(await batch_of(made, config, fresh=lambda _: False, error=lambda *_: 0.0))
    return made


async def batch_of(learner: TorchLearner, config: RunConfig, *, fresh: Callable[[int], bool], error: Error) -> Batch:
    """As the learner's weights would sample it, but for an error of the sampler on each token; `fresh` says by the
    place of a token whether the present weights sampled it, or those before."""
    version = learner._weights.version
    groups: list[Group] = []
    for group in small_groups():
        members = []
        for t, column in zip(group.trajectories, await learner.score(group.trajectories), strict=True):
            places = range(len(t.sampled))
            members.append(
                replace(
                    t,
                    logprobs=tuple(column[i] + error(fresh(i), i) if t.sampled[i] else 0.0 for i in places),
                    weights_version=tuple(version - (not fresh(i)) if t.sampled[i] else -1 for i in places),
                )
            )
        groups.append(replace(group, trajectories=tuple(members)))
    readings = await learner.read([t for group in groups for t in group.trajectories])
    return small_batch(config, groups, readings=readings)


def is_even(place: int) -> bool:
    return place % 2 == 0


def count_fresh(batch: Batch) -> int:
    return sum(version == 1 for t in batch.trajectories for version in t.weights_version)


async def test_an_error_on_tokens_of_older_weights_does_not_stop_the_run(learner, config):
    batch = await batch_of(learner, config, fresh=is_even, error=lambda fresh, _: 0.0 if fresh else -5.0)
    update = await learner.update(batch)
    metrics = update.metrics
    sampled = sum(sum(t.sampled) for t in batch.trajectories)
    assert update.skipped is None
    assert 0 < metrics["parity_tokens"] == count_fresh(batch) < sampled
    assert metrics["parity_logprob_max_abs_error"] < 1e-4
    assert metrics["staleness_max"] == 1.0
    assert metrics["staleness_mean"] == pytest.approx(1 - count_fresh(batch) / sampled)


async def test_the_same_error_on_fresh_tokens_stops_it(learner, config):
    batch = await batch_of(learner, config, fresh=is_even, error=lambda fresh, _: -5.0 if fresh else 0.0)
    with pytest.raises(ParityError, match=r"disagree by [\d.]+ nats per token \(max: 5"):
        await learner.update(batch)


async def test_where_no_token_is_fresh_nothing_is_said_about_parity(learner, config):
    batch = await batch_of(learner, config, fresh=lambda _: False, error=lambda *_: -5.0)
    metrics = (await learner.update(batch)).metrics
    assert {name: value for name, value in metrics.items() if name.startswith("parity")} == {"parity_tokens": 0.0}


async def test_a_stale_batch_without_signal_is_scored_no_further_than_a_fresh_one(learner, config):
    """Its first minibatch is scored for the metrics; the rest has nothing to tell."""
    scored: list[int] = []
    learner.policy.register_forward_hook(lambda *_: scored.append(1))
    learner._config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"minibatches": 2})})
    batch = await batch_of(learner, config, fresh=lambda _: False, error=lambda *_: 0.0)
    batch = replace(batch, advantages=tuple(tuple(0.0 for _ in row) for row in batch.advantages))
    scored.clear()
    update = await learner.update(batch)
    assert update.metrics["minibatches_without_signal"] == 2.0
    assert len(scored) == 1


async def test_a_minibatch_of_stale_tokens_leaves_parity_to_be_checked_on_a_later_one(learner, config):
    """No minibatch has a signal, so none makes a step; the second of the two has the fresh tokens."""
    learner._config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"minibatches": 2})})
    batch = await batch_of(learner, config, fresh=lambda _: True, error=lambda *_: 0.0)
    batch = replace(batch, advantages=tuple(tuple(0.0 for _ in row) for row in batch.advantages))
    first, second = minibatches_of(batch, learner._config)
    members = list(batch.trajectories)
    for i in first:
        older = tuple(
            version - sampled for version, sampled in zip(members[i].weights_version, members[i].sampled, strict=True)
        )
        members[i] = replace(members[i], weights_version=older)
    rest = iter(members)
    groups = tuple(replace(group, trajectories=tuple(next(rest) for _ in group.trajectories)) for group in batch.groups)
    metrics = (await learner.update(replace(batch, groups=groups))).metrics
    assert metrics["minibatches_without_signal"] == 2.0
    assert metrics["parity_tokens"] == sum(sum(members[i].sampled) for i in second)


async def test_stale_tokens_weigh_what_their_odds_have_become_up_to_the_cap(learner, config):
    def error(fresh: bool, place: int) -> float:
        return 0.0 if fresh else (-5.0, -0.5, 0.7)[place % 3]

    batch = await batch_of(learner, config, fresh=is_even, error=error)
    old = await learner.score(batch.trajectories)
    metrics = (await learner.update(batch)).metrics
    weights, losses = [], []
    for t, old_row, advantages, learnable in zip(
        batch.trajectories, old, batch.advantages, batch.learnable, strict=True
    ):
        for i in range(len(learnable)):
            if learnable[i]:
                weights.append(min(math.exp(old_row[i] - t.logprobs[i]), CAP))
                losses.append(-advantages[i] * weights[-1])  # before the step, the ratio to the recomputed one is 1
    expected = {round(math.exp(x), 3) for x in (0.0, 0.5, -0.7)} | {CAP}
    assert {round(weight, 3) for weight in weights} == expected
    assert metrics["importance_mean"] == pytest.approx(sum(weights) / len(weights), rel=1e-5)
    assert metrics["importance_cut_fraction"] == pytest.approx(weights.count(CAP) / len(weights))
    assert metrics["policy_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
