"""Batches whose rewards pay for the distance to a reference, white batches, and what else a batch takes along."""
# R1, R5, R10, R11

from __future__ import annotations

import math
import statistics
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import make_episode, make_group

from mcprl.config import AlgorithmConfig, CriticConfig, KlConfig
from mcprl.learning.algorithms import make_batch
from mcprl.records import Readings

FIRST = make_episode("csfs|cs", (1.0, 0.5), logprobs=(0.0, -1.0, 0.0, -0.5, 0.0, -0.2))
SECOND = make_episode("css", (0.2,), logprobs=(0.0, -0.7, -0.3))
# Where nothing is learnt, the reference says something absurd: it must not count.
REFERENCE = ((9.0, -1.5, 9.0, -0.1, 9.0, -0.9), (9.0, -0.4, -0.3))
LEARNABLE = ((1, 3, 5), (1, 2))
BETA = 0.3


def cost(episode: int, place: int) -> float:
    return BETA * ((FIRST, SECOND)[episode].logprobs[place] - REFERENCE[episode][place])


def config(estimator: Literal["k1", "k2"] = "k1", **options: Any) -> AlgorithmConfig:
    return AlgorithmConfig(kl=KlConfig(coefficient=BETA, estimator=estimator), **options)


def made(algorithm: AlgorithmConfig, readings: Readings, kl_coefficient: float = BETA):
    return make_batch(0, [make_group(FIRST, SECOND)], algorithm, readings, kl_coefficient=kl_coefficient)


def test_an_episodes_reward_pays_for_the_divergence_of_its_learnable_tokens():
    batch = made(config(advantages="dr_grpo"), Readings(reference_logprobs=REFERENCE))
    first = 1.5 - sum(cost(0, place) for place in LEARNABLE[0])
    second = 0.2 - sum(cost(1, place) for place in LEARNABLE[1])
    wanted = (first - second) / 2
    assert [batch.advantages[0][p] for p in LEARNABLE[0]] == pytest.approx([wanted] * 3)
    assert [batch.advantages[1][p] for p in LEARNABLE[1]] == pytest.approx([-wanted] * 2)


@pytest.mark.parametrize(("step", "steps"), [("token", [[1], [3], [5]]), ("turn", [[1, 3], [5]])])
def test_with_a_critic_each_step_pays_for_its_own_tokens(step, steps):
    critic = CriticConfig(gamma=1.0, lam=1.0, step=step)
    readings = Readings(reference_logprobs=REFERENCE, values=((0.0,) * 6, (0.0,) * 3))
    batch = made(config(advantages="gae", critic=critic), readings)
    earned = {1: 0.0, 3: 1.0, 5: 0.5}
    for number, places in enumerate(steps):
        later = [place for following in steps[number:] for place in following]
        wanted = sum(earned[place] - cost(0, place) for place in later)
        assert [batch.returns[0][place] for place in places] == pytest.approx([wanted] * len(places))


log_ratios = st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=5)


@given(
    st.lists(log_ratios, min_size=2, max_size=6),
    st.floats(-1.0, 1.0),
    st.sampled_from(["grpo", "dr_grpo", "rloo"]),
)
def test_among_equal_rewards_an_advantage_is_no_larger_than_the_penalties_differ(ratios, reward, advantages):
    episodes = [
        make_episode("c" + "s" * len(own), (reward,), logprobs=(0.0, *(ratio - 2.0 for ratio in own))) for own in ratios
    ]
    readings = Readings(reference_logprobs=tuple((-2.0,) * (len(own) + 1) for own in ratios))
    algorithm = config(advantages=advantages)
    batch = make_batch(0, [make_group(*episodes)], algorithm, readings, kl_coefficient=BETA)
    penalties = [BETA * sum(own) for own in ratios]
    spread = max(penalties) - min(penalties)
    # rloo compares with the others' mean, the other two with the mean of all: at most all of the spread.
    assert all(abs(row[1]) <= spread + 1e-9 for row in batch.advantages)


def test_grpo_scales_the_reward_and_not_the_penalty():
    batch = made(config(advantages="grpo"), Readings(reference_logprobs=REFERENCE))
    penalties = [sum(cost(episode, place) for place in LEARNABLE[episode]) for episode in (0, 1)]
    wanted = 1.0 / math.sqrt(2) - (penalties[0] - penalties[1]) / 2
    assert batch.advantages[0][1] == pytest.approx(wanted, rel=1e-5)
    assert batch.advantages[1][1] == pytest.approx(-wanted, rel=1e-5)


def test_a_penalty_in_the_loss_leaves_rewards_alone():
    readings = Readings(reference_logprobs=REFERENCE)
    batch = made(config("k2", advantages="dr_grpo"), readings)
    assert batch.advantages == made(AlgorithmConfig(advantages="dr_grpo"), readings, 0.0).advantages
    assert (batch.readings, batch.kl_coefficient) == (readings, BETA)


def test_a_coefficient_of_nothing_needs_no_reference_and_a_real_one_does():
    assert made(config(), Readings(), 0.0).advantages[0][1] > 0
    with pytest.raises(ValueError, match=r"did not provide values that this objective needs: reference_logprobs$"):
        made(config(), Readings())


@given(st.lists(st.lists(st.tuples(st.sampled_from(["cs", "cssf", "csss"]), st.floats(0, 1)), min_size=2, max_size=4)))
def test_a_white_batch_has_mean_0_and_deviation_1_over_its_learnable_tokens(specs):
    groups = [make_group(*[make_episode(kinds, (round(r, 3),)) for kinds, r in spec]) for spec in specs]
    values = tuple((0.0,) * len(t.token_ids) for group in groups for t in group.trajectories)
    white = make_batch(0, groups, AlgorithmConfig(advantages="gae"), Readings(values=values))
    chosen = [
        (before, after)
        for before_T, after_T, mask in zip(white.returns or (), white.advantages, white.learnable, strict=True)
        for before, after, learns in zip(before_T, after_T, mask, strict=True)
        if learns or after != 0.0
    ]
    if len({before for before, _ in chosen}) < 2:
        assert {after for _, after in chosen} <= {0.0}
        return
    mean = statistics.fmean(before for before, _ in chosen)
    deviation = statistics.stdev(before for before, _ in chosen)
    wanted = [(before - mean) / deviation for before, _ in chosen]
    assert [after for _, after in chosen] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("advantages", ["grpo", "dr_grpo", "rloo"])
def test_a_reward_that_is_no_number_stays_one_in_its_group_and_touches_no_other(advantages):
    broken = make_group(make_episode("cs", (math.nan,)), make_episode("cs", (1.0,)))
    sound = make_group(make_episode("cs", (0.0,)), make_episode("cs", (1.0,)), name="other")
    batch = make_batch(0, [broken, sound], AlgorithmConfig(advantages=advantages))
    assert [math.isnan(row[1]) for row in batch.advantages] == [True, True, False, False]


def test_each_way_to_compare_with_the_group_is_its_own():
    group = make_group(*[make_episode("cs", (reward,)) for reward in (1.0, 0.0, 0.0, 0.0)])
    first = {
        way: make_batch(0, [group], AlgorithmConfig(advantages=way)).advantages[0][1]
        for way in ("grpo", "dr_grpo", "rloo")
    }
    assert first == pytest.approx({"grpo": 1.5, "dr_grpo": 0.75, "rloo": 1.0}, rel=1e-5)


def test_demonstrations_come_along_and_have_no_advantage():
    batch = make_batch(
        4, [make_group(FIRST, SECOND)], AlgorithmConfig(), demonstrations=[FIRST], demonstration_weight=0.5
    )
    assert (batch.demonstrations, batch.demonstration_weight) == ((FIRST,), 0.5)
    assert len(batch.advantages) == 2


@pytest.mark.parametrize(
    ("rewards", "varied"), [((0.1, 0.1, 0.1), False), ((0.1, 0.1, 0.2), True), ((math.nan, math.nan), True)]
)
def test_a_group_has_variance_where_its_rewards_differ(rewards, varied):
    assert make_group(*[make_episode("cs", (reward,)) for reward in rewards]).has_variance is varied
